//! providerbench: measures a provider's ping-pong and RDMA write stream, to compare with perftest's. It also measures
//! what it costs to register memory, and to copy it. From that follows whether RDMA of a program's own memory is worth
//! it (A2).
//!
//!     providerbench LIBRARY LOCAL:PORT               serves one client
//!     providerbench LIBRARY LOCAL PEER:PORT          measures and prints JSON
//!
//! It waits by notification and poll, as ib_send_lat -e and ib_write_bw -e do. Times are those of one direction, as
//! perftest gives them.

use sanshim_core::provider::interface::client::*;
use sanshim_core::provider::interface::library::Library;
use sanshim_core::provider::interface::*;
use std::error::Error as AnyError;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

type Outcome<T> = std::result::Result<T, Box<dyn AnyError>>;

const MESSAGE: usize = 64;
const ROUNDS: u64 = 1000;
const WRITE: usize = 64 * 1024;
const WRITES: u64 = 500;
const DEPTH: u32 = 64;
/// So many writes are under way at a time.
const WINDOW: u64 = 32;
const RECEIVES: u64 = 16;
/// Sizes of memory that is registered for one transfer, or copied.
const REGISTERED: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
const REGISTRATIONS: u32 = 20;

struct End {
    connector: Connector,
    pair: QueuePair,
    received: CompletionQueue,
    sent: CompletionQueue,
    region: MemoryRegion,
    memory: Vec<u8>,
    adapter: Adapter,
}

impl End {
    fn open(library: &Path, local: SocketAddr) -> Outcome<Self> {
        let adapter = Provider::open(&Library::load(library)?)?.open_adapter(local)?;
        let received = adapter.create_completion_queue(DEPTH)?;
        let sent = adapter.create_completion_queue(DEPTH)?;
        let attributes = QueuePairAttributes {
            context: 0,
            receive_depth: DEPTH,
            initiator_depth: DEPTH,
            segments: 1,
            inline_size: (MESSAGE as u32).min(adapter.query().max_inline),
        };
        let pair = adapter.create_queue_pair(&attributes, &received, &sent, None)?;
        let mut memory = vec![0u8; WRITE + RECEIVES as usize * MESSAGE];
        let region = adapter.create_memory_region()?;
        // SAFETY: the vector is never resized and is dropped after the region.
        unsafe { region.register(memory.as_mut_ptr(), memory.len())? };
        let connector = adapter.create_connector()?;
        let end = End { connector, pair, received, sent, region, memory, adapter };
        for slot in 0..RECEIVES {
            end.post(slot)?;
        }
        Ok(end)
    }

    /// Where the message `slot` is received.
    fn place(&self, slot: u64) -> *const u8 {
        self.memory.as_ptr().wrapping_add(WRITE + slot as usize * MESSAGE)
    }

    fn post(&self, slot: u64) -> Outcome<()> {
        Ok(self.pair.receive(slot, &[self.region.segment(self.place(slot), MESSAGE as u32)?])?)
    }

    /// Sleeps until there is a completion, and gives it.
    fn completion(&self, queue: &CompletionQueue) -> Outcome<Completion> {
        let mut one = [Completion::default()];
        loop {
            if queue.get_results(&mut one)? == 1 {
                one[0].result()?;
                return Ok(one[0]);
            }
            let asked = queue.notify(0).is_ok();
            if queue.get_results(&mut one)? == 1 {
                one[0].result()?;
                return Ok(one[0]);
            }
            if asked {
                wait(queue);
            }
            while queue.next_result().is_some() {}
        }
    }

    /// Receives a message and posts its buffer again.
    fn receive(&self) -> Outcome<[u8; MESSAGE]> {
        let completion = self.completion(&self.received)?;
        let mut bytes = [0; MESSAGE];
        // SAFETY: within the registered memory, which the device has done with.
        unsafe { bytes.as_mut_ptr().copy_from(self.place(completion.request), MESSAGE) };
        self.post(completion.request)?;
        Ok(bytes)
    }

    /// Sends a message. Waits for every sixteenth.
    fn send(&self, number: u64, bytes: &[u8; MESSAGE]) -> Outcome<()> {
        let told = number % 16 == 15;
        self.pair.send_inline(number, bytes, if told { Flags::NONE } else { Flags::SILENT })?;
        if told {
            self.completion(&self.sent)?;
        }
        Ok(())
    }
}

fn wait(object: &impl Overlapped) {
    let mut poll = libc::pollfd { fd: object.descriptor(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, 5000) };
}

fn finish(started: ProviderResult<Started>, object: &impl Overlapped) -> Outcome<()> {
    if started? == Started::Pending {
        loop {
            if let Some(reported) = object.next_result() {
                return Ok(reported.result?);
            }
            wait(object);
        }
    }
    Ok(())
}

fn serve(library: &Path, local: SocketAddr) -> Outcome<()> {
    let end = End::open(library, local)?;
    let listener = end.adapter.create_listener()?;
    listener.bind(local)?;
    listener.listen(1)?;
    finish(listener.get_connection_request(&end.connector, 1), &listener)?;
    finish(end.connector.accept(&end.pair, b"", 2), &end.connector)?;
    for number in 0..ROUNDS {
        let bytes = end.receive()?;
        end.send(number, &bytes)?;
    }
    let address = end.memory.as_ptr() as u64;
    let range = address..address + WRITE as u64;
    let token = end.pair.bind(1, &end.region, range, RemoteAccess::Write, Flags::NONE)?;
    end.completion(&end.sent)?;
    let mut bytes = [0; MESSAGE];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&token.to_le_bytes());
    end.pair.send_inline(2, &bytes, Flags::NONE)?;
    end.receive()?;
    Ok(())
}

/// Microseconds to register memory and to end that, and to copy as much, for each size.
fn registration(adapter: &Adapter) -> Outcome<String> {
    let mut figures = Vec::new();
    for size in REGISTERED {
        let mut memory = vec![1u8; size];
        let mut copy = vec![2u8; size];
        let begun = Instant::now();
        for _ in 0..REGISTRATIONS {
            let region = adapter.create_memory_region()?;
            // SAFETY: the vector outlives the region.
            unsafe { region.register(memory.as_mut_ptr(), size)? };
            region.deregister()?;
        }
        let registered = begun.elapsed() / REGISTRATIONS;
        let begun = Instant::now();
        for _ in 0..REGISTRATIONS {
            copy.copy_from_slice(std::hint::black_box(&memory));
            std::hint::black_box(&mut copy);
        }
        let copied = begun.elapsed() / REGISTRATIONS;
        let (registered, copied) = (registered.as_secs_f64() * 1e6, copied.as_secs_f64() * 1e6);
        figures.push(format!("\"{}\": [{registered:.1}, {copied:.1}]", size >> 10));
    }
    Ok(figures.join(", "))
}

fn measure(library: &Path, local: SocketAddr, peer: SocketAddr) -> Outcome<()> {
    let end = End::open(library, local)?;
    finish(end.connector.connect(&end.pair, peer, b"", 1), &end.connector)?;
    finish(end.connector.complete_connect(2), &end.connector)?;
    let bytes = [1; MESSAGE];
    let begun = Instant::now();
    for number in 0..ROUNDS {
        end.send(number, &bytes)?;
        end.receive()?;
    }
    let one_way = begun.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64 / 2.0;

    let told = end.receive()?;
    let remote = RemoteMemory {
        address: u64::from_le_bytes(told[..8].try_into()?),
        token: u32::from_le_bytes(told[8..12].try_into()?),
    };
    let segment = end.region.segment(end.memory.as_ptr(), WRITE as u32)?;
    let begun = Instant::now();
    let mut done = 0;
    for number in 0..WRITES {
        // One completion tells of four writes.
        let told = number % 4 == 3;
        let flags = if told { Flags::NONE } else { Flags::SILENT };
        end.pair.write(number, &[segment], remote, flags)?;
        if told && number + 1 - done >= WINDOW {
            done = end.completion(&end.sent)?.request + 1;
        }
    }
    while done < WRITES {
        done = end.completion(&end.sent)?.request + 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    end.pair.send_inline(0, &bytes, Flags::NONE)?;
    end.completion(&end.sent)?;
    let megabytes = WRITES as f64 * WRITE as f64 / seconds / (1024.0 * 1024.0);
    let registered = registration(&end.adapter)?;
    println!(
        "{{\"one_way_us\": {one_way:.2}, \"write_mib_s\": {megabytes:.2}, \
         \"kib_register_us_copy_us\": {{{registered}}}}}"
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [library, local] => serve(Path::new(library), local.parse()?),
        [library, local, peer] => {
            measure(Path::new(library), format!("{local}:0").parse()?, peer.parse()?)
        }
        _ => Err("usage: providerbench LIBRARY LOCAL:PORT | LIBRARY LOCAL PEER:PORT".into()),
    }
}
