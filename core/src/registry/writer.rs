//! The writer of this process's own file.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::current;
use super::error::RegistryError;
use super::folder::FolderPath;
use super::kernel::{self, OwnedDescriptor};
pub(crate) use super::layout::CAPACITY;
use super::layout::{
    RegistryTable, FILE_SIZE, HEADER_SIZE, MAGIC, PROGRAM_SIZE, SLOT_SIZE, VERSION,
};
use super::process;
use super::publisher::Publisher;
use super::slot::Slot;
use super::sweep::sweep;

/// One fork child in so many looks for files that were left behind. So a server that forks for each request pays next
/// to nothing for that.
const CHILDREN_PER_SWEEP: u32 = 16;

/// This process's registry file.
///
/// The mapping stays for the life of the process, so a [`Slot`] is `'static`. This value may be dropped at any time. No
/// method allocates or locks.
#[derive(Debug)]
pub struct Registry {
    table: &'static RegistryTable,
    /// A bit for each slot in use. This is private memory: a fork child sees it as it was at the fork, whatever the
    /// parent does with the file meanwhile.
    used: [AtomicU64; CAPACITY / 64],
    /// The slots as they were when a fork that is under way began.
    at_fork: Option<NewTable>,
    folder: FolderPath,
    /// The user whose folder that is.
    owner: u32,
    /// The process whose file this is.
    publisher: Publisher,
    /// There is no file yet: see [`hide_in_fork_child`](Registry::hide_in_fork_child).
    is_hidden: bool,
}

impl std::fmt::Debug for RegistryTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table at {:p}", std::ptr::from_ref(self))
    }
}

impl Registry {
    /// Creates and maps this process's file. It replaces a file that this process left before an exec, or that a dead
    /// process of the same id left. `program` is the name to show, of which 64 bytes are kept.
    ///
    /// # Errors
    /// When `/dev/shm` or this user's folder in it cannot be used, or a limit forbids the file.
    pub fn open(program: &[u8]) -> Result<Registry, RegistryError> {
        let owner = kernel::effective_user();
        Self::open_in(FolderPath::of_own_user()?, owner, program)
    }

    /// As [`open`](Self::open), in the given folder of user `owner`.
    pub(super) fn open_in(
        folder: FolderPath,
        owner: u32,
        program: &[u8],
    ) -> Result<Registry, RegistryError> {
        let mut name = [0; PROGRAM_SIZE];
        let length = program.len().min(PROGRAM_SIZE);
        name[..length].copy_from_slice(&program[..length]);

        let publisher = Publisher::of_this_process()?;
        let opened = folder.open(owner)?;
        let new = NewTable::create(folder, &opened, publisher)?;
        new.describe(publisher, &name);
        name_file(folder, &opened, publisher)?;
        let table = new.keep();
        current::begin(table);
        sweep(&opened, publisher.namespace, publisher.pid);
        let used = [const { AtomicU64::new(0) }; CAPACITY / 64];
        Ok(Registry { table, used, at_fork: None, folder, owner, publisher, is_hidden: false })
    }

    /// A free slot whose counts are zero. It is not visible before it is first published. `None` when all [`CAPACITY`]
    /// slots are taken, or when shared memory is full. Takes no lock. It is the lowest free slot, which keeps the file
    /// small.
    pub fn allocate(&self) -> Option<&'static Slot> {
        let index = self.claim()?;
        let slot = &self.table.slots[index];
        // SAFETY: the slot is hidden and ours; its counts are set right below.
        if unsafe { kernel::reserve(slot.counts_address()) }.is_err() {
            self.free(index);
            return None;
        }
        slot.reset();
        self.table.header.high_water.fetch_max(index as u32 + 1, Ordering::Release);
        Some(slot)
    }

    /// Hides a slot of [`allocate`](Self::allocate) and makes it free. The caller does not use it afterwards. To
    /// release the [`spare`](super::spare) one has no effect.
    pub fn release(&self, slot: &'static Slot) {
        if let Some(index) = current::index_in(self.table, slot) {
            current::hide(slot);
            self.free(index);
        }
    }

    /// Before a fork: copies the slots in use to private memory, because the parent may release and reuse them before
    /// the child gets to run.
    pub fn before_fork(&mut self) {
        // Without memory for a copy the child takes the parent's slots as it finds them.
        self.at_fork = NewTable::private().ok().and_then(|copy| {
            let (to, from) = (&copy.table().header, &self.table.header);
            for (to, from) in to.program.iter().zip(&from.program) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            to.admission.copy_from(&from.admission);
            self.copy_slots(self.table, copy.table(), |_| Ok(())).is_ok().then_some(copy)
        });
    }

    /// In the parent, after [`before_fork`](Self::before_fork) and a fork, even one that failed.
    pub(crate) fn after_fork_in_parent(&mut self) {
        self.at_fork = None;
    }

    /// Gives a fork child a file of its own at the same address. So every `&'static Slot` stays valid and keeps its
    /// counts, and the child never writes to the parent's file. To be called before anything else here, in the child's
    /// only thread. Async-signal-safe.
    ///
    /// # Errors
    /// When the child cannot have a file, because of a chroot, a limit, or no space. The slots then lie in private
    /// memory of the child, where they are valid and nobody sees them. Only if there is no memory for that either, they
    /// stay in the parent's file.
    pub(crate) fn after_fork_in_child(&mut self) -> Result<(), RegistryError> {
        current::forget_helper();
        let result = self.renew_with_file();
        if result.is_err() {
            let private = NewTable::private()
                .map_err(RegistryError::io("replace the table of", self.folder))?;
            self.renew(private)?;
        }
        self.at_fork = None;
        result
    }

    /// Instead of [`after_fork_in_child`](Self::after_fork_in_child), where the child has nothing to show yet. Its
    /// slots lie in private memory at the same address, and nobody sees them before [`appear`](Self::appear). Costs one
    /// system call. False if there is no memory.
    pub(crate) fn hide_in_fork_child(&mut self) -> bool {
        let Some(copy) = self.at_fork.take() else { return false };
        self.is_hidden = self.put_in_place(copy).is_ok();
        if self.is_hidden {
            current::forget_helper();
        }
        self.is_hidden
    }

    /// Gives the child its file after all. A change that another thread makes in a slot meanwhile may be missing there.
    ///
    /// # Errors
    ///
    /// As [`after_fork_in_child`](Self::after_fork_in_child).
    pub(crate) fn appear(&mut self) -> Result<(), RegistryError> {
        if !std::mem::take(&mut self.is_hidden) {
            return Ok(());
        }
        let result = self.renew_with_file();
        // From now on the mailbox is published in the new file.
        current::publish_helper_again();
        result
    }

    /// Removes this process's file. Does nothing in a process that did not create it, such as a fork child that has
    /// none of its own yet.
    pub fn remove(&self) {
        // A child in another PID namespace may have the same number.
        let is_its = || Publisher::of_this_process().is_ok_and(|now| now == self.publisher);
        if !self.is_hidden && is_its() {
            if let Ok(folder) = self.folder.open_existing() {
                // A process that changed its user may not remove it. The next process that sweeps does.
                let _ = kernel::unlink(&folder, self.publisher.file_name(true).as_c_str());
            }
        }
    }

    /// Sets the lowest clear bit and returns its index.
    fn claim(&self) -> Option<usize> {
        for (index, word) in self.used.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let free = bits.trailing_ones();
                // Acquire, to see the previous holder's last stores to the slot.
                match word.compare_exchange_weak(
                    bits,
                    bits | 1 << free,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Some(index * 64 + free as usize),
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    fn free(&self, index: usize) {
        self.used[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
    }

    fn renew_with_file(&mut self) -> Result<(), RegistryError> {
        let own = Publisher::of_this_process()?;
        let opened = self.open_folder_in_child()?;
        let new = NewTable::create(self.folder, &opened, own)?;
        self.publisher = own;
        let renewed = self.renew(new).and_then(|()| name_file(self.folder, &opened, own));
        if renewed.is_err() {
            let _ = kernel::unlink(&opened, own.file_name(false).as_c_str());
        } else if own.pid.is_multiple_of(CHILDREN_PER_SWEEP) {
            sweep(&opened, own.namespace, own.pid / CHILDREN_PER_SWEEP);
        }
        renewed
    }

    /// Opens the folder that the process used when the library was loaded. A child that has changed its user since then
    /// uses that of its new user.
    fn open_folder_in_child(&mut self) -> Result<OwnedDescriptor, RegistryError> {
        let user = kernel::effective_user();
        match self.folder.open(self.owner) {
            Err(_) if user != self.owner => {
                self.folder = FolderPath::of_own_user()?;
                self.owner = user;
                self.folder.open(user)
            }
            result => result,
        }
    }

    /// Fills `new` from the table in use, and puts it in that one's place.
    fn renew(&mut self, new: NewTable) -> Result<(), RegistryError> {
        let mut program = [0; PROGRAM_SIZE];
        for (bytes, word) in program.chunks_exact_mut(8).zip(&self.table.header.program) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        new.describe(self.publisher, &program);
        new.table().header.admission.copy_from(&self.table.header.admission);
        let from = self.at_fork.as_ref().map_or(self.table, NewTable::table);
        // SAFETY: no thread uses the new table yet, and the counts are copied after this.
        let reserve = |slot: &Slot| unsafe { kernel::reserve(slot.counts_address()) };
        self.copy_slots(from, new.table(), reserve)
            .map_err(RegistryError::io("find room in", self.folder))?;

        self.put_in_place(new).map_err(RegistryError::io("move the table of", self.folder))
    }

    fn put_in_place(&self, new: NewTable) -> io::Result<()> {
        let old = std::ptr::from_ref(self.table).cast_mut().cast();
        // SAFETY: both are mappings of FILE_SIZE bytes; nothing refers to the new one's address.
        unsafe { kernel::move_over(new.address, old, FILE_SIZE) }?;
        std::mem::forget(new);
        Ok(())
    }

    /// Copies the slots in use. Each is first given memory by `reserve`.
    fn copy_slots(
        &self,
        from: &RegistryTable,
        to: &RegistryTable,
        reserve: impl Fn(&Slot) -> io::Result<()>,
    ) -> io::Result<()> {
        for (word, bits) in self.used.iter().enumerate() {
            let mut bits = bits.load(Ordering::Relaxed);
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                reserve(&to.slots[index])?;
                to.slots[index].copy_from(&from.slots[index]);
            }
        }
        let high_water = self.table.header.high_water.load(Ordering::Relaxed);
        to.header.high_water.store(high_water, Ordering::Release);
        Ok(())
    }
}

/// Gives a complete file its final name, under which readers look for it.
fn name_file(
    folder: FolderPath,
    opened: &OwnedDescriptor,
    of: Publisher,
) -> Result<(), RegistryError> {
    let (unfinished, finished) = (of.file_name(false), of.file_name(true));
    kernel::rename(opened, unfinished.as_c_str(), finished.as_c_str())
        .map_err(RegistryError::io("rename a file in", folder))
}

/// A table that is mapped and not in use yet. It is unmapped when dropped.
#[derive(Debug)]
struct NewTable {
    address: *mut u8,
}

// SAFETY: a Table is atomics only, and the mapping belongs to the value.
unsafe impl Send for NewTable {}
// SAFETY: as above.
unsafe impl Sync for NewTable {}

impl NewTable {
    /// Creates the process's file under its unfinished name and maps it. The mapping holds the file. A reader in
    /// another PID namespace cannot see the process, and sees by that whether it lives.
    fn create(
        folder: FolderPath,
        opened: &OwnedDescriptor,
        publisher: Publisher,
    ) -> Result<NewTable, RegistryError> {
        let limit = kernel::file_size_limit();
        if limit < FILE_SIZE as u64 {
            return Err(RegistryError::FileSizeLimit { limit });
        }
        let name = publisher.file_name(false);
        // A process of the same id may have left it, if it was killed half-way.
        let _ = kernel::unlink(opened, name.as_c_str());
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let file = kernel::open(opened.raw(), name.as_c_str(), flags, 0o600)
            .map_err(RegistryError::io("make a file in", folder))?;
        let mapped = kernel::set_mode(&file, 0o600)
            .and_then(|()| kernel::hold(&file))
            .and_then(|()| kernel::set_length(&file, FILE_SIZE))
            .and_then(|()| kernel::map(Some(&file), FILE_SIZE))
            .map(|address| NewTable { address })
            .and_then(|table| table.reserve_header().map(|()| table));
        mapped.map_err(|error| {
            let _ = kernel::unlink(opened, name.as_c_str());
            RegistryError::io("map a file in", folder)(error)
        })
    }

    /// A table in private memory, without a file.
    fn private() -> io::Result<NewTable> {
        kernel::map(None, FILE_SIZE).map(|address| NewTable { address })
    }

    fn reserve_header(&self) -> io::Result<()> {
        // SAFETY: the header is written afterwards; its first 16 bytes are free now.
        unsafe { kernel::reserve(self.address) }
    }

    fn table(&self) -> &RegistryTable {
        // SAFETY: the mapping is FILE_SIZE zeroed or atomic bytes, page-aligned, and lives as long
        // as self; every bit pattern is a valid Table.
        unsafe { &*self.address.cast::<RegistryTable>() }
    }

    /// Fills the header.
    fn describe(&self, publisher: Publisher, program: &[u8; PROGRAM_SIZE]) {
        let header = &self.table().header;
        let relaxed = Ordering::Relaxed;
        header.version.store(VERSION, relaxed);
        header.header_size.store(HEADER_SIZE as u32, relaxed);
        header.slot_size.store(SLOT_SIZE as u32, relaxed);
        header.capacity.store(CAPACITY as u32, relaxed);
        header.pid.store(publisher.pid, relaxed);
        header.uid.store(kernel::effective_user(), relaxed);
        header.start_time.store(process::own_start_time(), relaxed);
        header.pid_namespace.store(publisher.namespace, relaxed);
        for (word, part) in header.executable.iter().zip(process::own_executable()) {
            word.store(part, relaxed);
        }
        for (word, bytes) in header.program.iter().zip(program.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(bytes.try_into().unwrap_or_default()), relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release);
    }

    fn keep(self) -> &'static RegistryTable {
        let address = self.address.cast::<RegistryTable>();
        std::mem::forget(self);
        // SAFETY: as in `table`, and the mapping is never undone, only replaced by another table.
        unsafe { &*address }
    }
}

impl Drop for NewTable {
    fn drop(&mut self) {
        // SAFETY: made by `map`, and a table that is in use has been forgotten.
        unsafe { kernel::unmap(self.address, FILE_SIZE) };
    }
}
