import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/**
 * Echo server on one selector: NioEchoServer [PORT]. The listener is a default, dual-stack one. Prints "port N" once it
 * listens, sends back what it receives until the client's end of stream, runs until it is killed.
 */
public final class NioEchoServer {
    public static void main(String[] arguments) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(arguments.length > 0 ? Integer.parseInt(arguments[0]) : 0));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        System.out.println("port " + listener.socket().getLocalPort());
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel connection = listener.accept();
                    connection.configureBlocking(false);
                    connection.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(65536));
                } else {
                    try {
                        echo(key);
                    } catch (IOException reset) {
                        // Its client is gone; the others' connections go on.
                        key.channel().close();
                    }
                }
            }
            selector.selectedKeys().clear();
        }
    }

    /** The buffer is empty while reading is awaited and holds the unsent rest otherwise. */
    private static void echo(SelectionKey key) throws IOException {
        SocketChannel connection = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable()) {
            buffer.clear();
            if (connection.read(buffer) < 0) {
                connection.close();
                return;
            }
            buffer.flip();
        }
        connection.write(buffer);
        key.interestOps(buffer.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
    }
}
