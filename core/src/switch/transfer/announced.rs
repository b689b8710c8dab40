//! Data that a send announced, in memory that the send lends until the receiver has read it.

use crate::session::Control;
use crate::switch::stream::Stream;

/// Data that was announced to the receiver. For RDMA read, the sender also lends the memory of the data. Once this
/// value is dropped, the memory is the program's alone again, and this end tells the receiver how much came by RDMA.
/// That holds also where the thread is cancelled in its wait.
pub(super) struct LentData<'a> {
    pub(super) stream: &'a Stream<'a>,
    pub(super) key: u32,
    pub(super) rest: u32,
    /// Bytes of the data that were read or written so far.
    pub(super) taken: u32,
    pub(super) readable: bool,
    /// The receiver knows of the data and expects it.
    pub(super) announced: bool,
}

impl LentData<'_> {
    /// Bytes that the receiver has read so far.
    pub(super) fn read_by_now(&self) -> u32 {
        self.stream.own().readable.0.done()
    }

    /// Ends RDMA read. Gives the number of bytes that the receiver read. They count as sent.
    pub(super) fn take_back(&mut self) -> u32 {
        if !std::mem::replace(&mut self.readable, false) {
            return 0;
        }
        let read = self.stream.take_back_readable(self.rest);
        self.stream.endpoint.send.transfers.read(read);
        self.stream.show_sent_by_rdma(read);
        self.taken += read;
        read
    }
}

impl Drop for LentData<'_> {
    fn drop(&mut self) {
        self.take_back();
        if self.announced && self.taken < self.rest {
            self.stream.endpoint.due.note(&Control::RestInMessages(self.key, self.taken));
        }
        self.stream.endpoint.send.transfers.forget();
    }
}
