import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;

/**
 * Echo client on java.net: EchoClient PORT CONNECTIONS [HOST]. It does what echo_client.py does,
 * with the same sizes, and prints "hold" and "ok N" at the same points.
 */
public final class EchoClient {
    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        int count = Integer.parseInt(arguments[1]);
        String host = arguments.length > 2 ? arguments[2] : "127.0.0.1";
        List<Socket> connections = new ArrayList<>();
        for (int seed = 0; seed < count; seed++) {
            Socket connection = new Socket(host, port);
            connection.setTcpNoDelay(true);
            connections.add(connection);
            DataInputStream in = new DataInputStream(connection.getInputStream());
            for (int size : Pattern.SIZES) {
                byte[] message = Pattern.payload(size, seed);
                connection.getOutputStream().write(message);
                byte[] answer = new byte[size];
                in.readFully(answer);
                Pattern.check(answer, message, "message of " + size);
            }
        }
        Pattern.hold();
        List<Thread> senders = new ArrayList<>();
        for (int seed = 0; seed < count; seed++) {
            Socket connection = connections.get(seed);
            byte[] message = Pattern.payload(Pattern.STREAM, seed);
            Thread sender = new Thread(() -> send(connection, message));
            sender.start();
            senders.add(sender);
        }
        for (int seed = 0; seed < count; seed++) {
            byte[] got = connections.get(seed).getInputStream().readAllBytes();
            Pattern.check(got, Pattern.payload(Pattern.STREAM, seed), "stream");
            senders.get(seed).join();
            connections.get(seed).close();
        }
        System.out.println("ok " + Pattern.total(count));
    }

    private static void send(Socket connection, byte[] message) {
        try {
            OutputStream out = connection.getOutputStream();
            out.write(message);
            connection.shutdownOutput();
        } catch (IOException failure) {
            System.err.println("send: " + failure);
            System.exit(1);
        }
    }
}
