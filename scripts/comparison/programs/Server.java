import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;

/** The JDK's own HTTP server, with its own thread: answers every request with a few bytes. */
class Server {
    public static void main(String[] arguments) throws Exception {
        byte[] answer = "small\n".repeat(10).getBytes();
        var address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]));
        var server = HttpServer.create(address, 0);
        server.createContext("/", exchange -> {
            exchange.sendResponseHeaders(200, answer.length);
            try (var body = exchange.getResponseBody()) {
                body.write(answer);
            }
        });
        server.start();
    }
}
