import java.io.IOException;
import java.util.Arrays;

/** What the echo clients send, as in echo_client.py. */
final class Pattern {
    static final int[] SIZES = {
        1, 2, 7, 64, 1000, 1519, 1520, 1521, 1536, 4096, 65535, 65536, 300000
    };
    static final int STREAM = 3_000_000;

    private Pattern() {}

    static byte[] payload(int size, int seed) {
        byte[] data = new byte[size];
        for (int i = 0; i < size; i++) {
            data[i] = (byte) ((seed * 7 + (i % 4093) * 31) % 251);
        }
        return data;
    }

    static void check(byte[] got, byte[] wanted, String what) {
        if (!Arrays.equals(got, wanted)) {
            System.err.println(
                    what + ": " + got.length + " of " + wanted.length + " bytes, first difference at "
                            + Arrays.mismatch(got, wanted));
            System.exit(1);
        }
    }

    static void hold() throws IOException {
        System.out.println("hold");
        int letter = 0;
        while (letter != '\n' && letter != -1) {
            letter = System.in.read();
        }
    }

    static long total(int count) {
        return (long) count * (Arrays.stream(SIZES).sum() + STREAM);
    }
}
