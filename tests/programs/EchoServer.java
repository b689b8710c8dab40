import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.ServerSocket;
import java.net.Socket;

/** Echo server on java.net with a thread per connection, listening as Java does: dual-stack. */
public final class EchoServer {
    public static void main(String[] arguments) throws IOException {
        ServerSocket listener = new ServerSocket(0, 128);
        System.out.println("port " + listener.getLocalPort());
        while (true) {
            Socket connection = listener.accept();
            Thread worker = new Thread(() -> echo(connection));
            worker.setDaemon(true);
            worker.start();
        }
    }

    private static void echo(Socket connection) {
        try (connection;
                InputStream in = connection.getInputStream();
                OutputStream out = connection.getOutputStream()) {
            byte[] buffer = new byte[65536];
            for (int n; (n = in.read(buffer)) >= 0; ) {
                out.write(buffer, 0, n);
            }
        } catch (IOException failure) {
            System.err.println("echo: " + failure);
        }
    }
}
