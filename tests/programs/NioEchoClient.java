import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;

/**
 * Echo client on one selector with non-blocking connects: NioEchoClient PORT CONNECTIONS [HOST]. It
 * does what echo_client.py does, with the same sizes, and prints "hold" and "ok N" at the same points.
 */
public final class NioEchoClient {
    private static final class Exchange {
        final int seed;
        ByteBuffer unsent;
        ByteBuffer received;

        Exchange(int seed) {
            this.seed = seed;
        }
    }

    private final Selector selector = Selector.open();
    private final int count;

    private NioEchoClient(int count) throws IOException {
        this.count = count;
    }

    public static void main(String[] arguments) throws IOException {
        int port = Integer.parseInt(arguments[0]);
        int count = Integer.parseInt(arguments[1]);
        String host = arguments.length > 2 ? arguments[2] : "127.0.0.1";
        NioEchoClient client = new NioEchoClient(count);
        client.connect(new InetSocketAddress(host, port));
        for (int size : Pattern.SIZES) {
            client.exchange(size, false);
        }
        Pattern.hold();
        client.exchange(Pattern.STREAM, true);
        System.out.println("ok " + Pattern.total(count));
    }

    private void connect(InetSocketAddress server) throws IOException {
        int connected = 0;
        for (int seed = 0; seed < count; seed++) {
            SocketChannel connection = SocketChannel.open();
            connection.configureBlocking(false);
            if (connection.connect(server)) {
                connected++;
            }
            connection.register(selector, SelectionKey.OP_CONNECT, new Exchange(seed));
        }
        while (connected < count) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isConnectable() && ((SocketChannel) key.channel()).finishConnect()) {
                    key.interestOps(0);
                    connected++;
                }
            }
            selector.selectedKeys().clear();
        }
    }

    /** Sends one message on every connection and awaits the answers, or the end of the stream. */
    private void exchange(int size, boolean end) throws IOException {
        for (SelectionKey key : selector.keys()) {
            Exchange exchange = (Exchange) key.attachment();
            exchange.unsent = ByteBuffer.wrap(Pattern.payload(size, exchange.seed));
            exchange.received = ByteBuffer.allocate(size + 1);
            key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
        }
        int waiting = count;
        while (waiting > 0) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isWritable()) {
                    write(key, end);
                }
                if (key.isReadable() && read(key, size, end)) {
                    waiting--;
                }
            }
            selector.selectedKeys().clear();
        }
    }

    private void write(SelectionKey key, boolean end) throws IOException {
        SocketChannel connection = (SocketChannel) key.channel();
        Exchange exchange = (Exchange) key.attachment();
        connection.write(exchange.unsent);
        if (!exchange.unsent.hasRemaining()) {
            key.interestOps(SelectionKey.OP_READ);
            if (end) {
                connection.shutdownOutput();
            }
        }
    }

    private boolean read(SelectionKey key, int size, boolean end) throws IOException {
        SocketChannel connection = (SocketChannel) key.channel();
        Exchange exchange = (Exchange) key.attachment();
        int n = connection.read(exchange.received);
        if (n >= 0 && (end || exchange.received.position() < size)) {
            return false;
        }
        byte[] got = new byte[exchange.received.position()];
        exchange.received.flip().get(got);
        Pattern.check(got, Pattern.payload(size, exchange.seed), "message of " + size);
        if (n < 0) {
            connection.close();
        } else {
            key.interestOps(0);
        }
        return true;
    }
}
