//! Control of a direction among the processes that share its end (D2): which process has it, and which is next.
//!
//! One thread at a time has it. Threads of the process in control take it as they come. A thread of another process
//! draws a ticket. The thread that gives the token back keeps it for the ticket whose turn it is (first in, first out).
//! So the process in control, when it wants the token again, is behind (D6). No thread sleeps in here: a caller is told
//! what to sleep on, and which thread to wake.
//!
//! The word lies in memory that the peer of the connection cannot write.

use super::sync::{fence, AtomicU32, AtomicU64, Ordering};

/// A thread sleeps until the word changes.
const WAITED_FOR: u32 = 1 << 31;
/// Not held: kept for the ticket in the low bits.
const KEPT: u32 = 1 << 30;
/// Beside [`KEPT`]: the last holder died with it.
const FROM_THE_DEAD: u32 = 1 << 29;
/// Tickets, and ids of threads (the kernel gives none above 2^22).
const NUMBER: u32 = FROM_THE_DEAD - 1;

/// The token. All zero: free, and never taken.
#[repr(C)]
#[derive(Debug)]
pub struct Token {
    /// Zero: free. Otherwise the thread that has the token, or the ticket for which it is kept.
    word: AtomicU32,
    /// Tickets drawn so far.
    drawn: AtomicU32,
    /// The ticket whose turn is next. Only the thread that has the token changes it.
    next: AtomicU32,
    /// The process in control: that of the last thread that had the token.
    process: AtomicU32,
    /// Times control changed from one process to another. Only the thread that has the token changes it.
    swaps: AtomicU32,
    /// A bit for each of the next tickets (by their last six bits) that was given up. One that is wrong
    /// costs a claim its place and no more.
    given_up: AtomicU64,
}

/// A thread that wants the token.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Its process; not zero.
    pub process: u32,
    /// Its id; not zero, below 2^29.
    pub thread: u32,
}

/// How the token was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTaken {
    /// From a holder that died with it: what it protects may be half changed.
    pub(crate) from_the_dead: bool,
    /// From another process (D2).
    pub swapped: bool,
}

/// What a claim has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has the token.
    Taken(TokenTaken),
    /// Look again.
    Again,
    /// Wake all sleepers and look again.
    WakeAll,
    /// Sleep while the word is this.
    Sleep(u32),
}

/// The threads to wake after the token was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// No thread sleeps.
    Nobody,
    /// Any one sleeper.
    One,
    /// All, because one of them is next.
    All,
}

/// Why the token was not obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another thread has it, or it is kept for one.
    Other,
    /// The calling thread has it.
    Reentered,
}

/// True if the turn of a ticket is over when it is `turn`'s.
fn is_over(ticket: u32, turn: u32) -> bool {
    let behind = turn.wrapping_sub(ticket) & NUMBER;
    behind != 0 && behind < NUMBER / 2
}

impl Token {
    /// Free.
    pub const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            drawn: AtomicU32::new(0),
            next: AtomicU32::new(0),
            process: AtomicU32::new(0),
            swaps: AtomicU32::new(0),
            given_up: AtomicU64::new(0),
        }
    }

    /// Takes the token if it is free: one atomic operation. Acquire.
    #[inline]
    pub fn try_take(&self, claim: Claim) -> Result<TokenTaken, Refused> {
        match self.word.compare_exchange(0, claim.thread, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(self.taken(claim, false)),
            Err(word) if word & KEPT == 0 && word & NUMBER == claim.thread => {
                Err(Refused::Reentered)
            }
            Err(_) => Err(Refused::Other),
        }
    }

    /// Takes the token if it is free, for something that is not the process's own: which process is in
    /// control stays as it is. Acquire.
    #[inline]
    pub fn try_borrow(&self, thread: u32) -> bool {
        self.word.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// True if the claim's process is in control, or was last.
    #[inline]
    pub(crate) fn was_of(&self, claim: Claim) -> bool {
        self.process.load(Ordering::Relaxed) == claim.process
    }

    /// The books. Only the thread that has the token calls this.
    #[inline]
    fn taken(&self, claim: Claim, from_the_dead: bool) -> TokenTaken {
        let before = self.process.load(Ordering::Relaxed);
        if before == claim.process {
            return TokenTaken { from_the_dead, swapped: false };
        }
        self.process.store(claim.process, Ordering::Relaxed);
        if before != 0 {
            self.swaps.store(self.swaps.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        TokenTaken { from_the_dead, swapped: before != 0 }
    }

    /// One look of a claim that was refused. `ticket` is its own, none at first, kept between looks.
    pub fn look(&self, claim: Claim, ticket: &mut Option<u32>) -> Step {
        if ticket.is_none() && self.process.load(Ordering::Relaxed) != claim.process {
            *ticket = Some(self.draw());
        }
        let word = self.word.load(Ordering::Relaxed);
        if word == 0 {
            return self.look_at_free(claim, *ticket);
        }
        if word & KEPT == 0 {
            return self.sleep_on(word);
        }
        let turn = word & NUMBER;
        let mine = *ticket.get_or_insert_with(|| self.draw());
        if turn == mine {
            return self.take_kept(claim, word, turn);
        }
        if is_over(mine, turn) {
            // It came too late and was passed over.
            *ticket = None;
            return Step::Again;
        }
        self.sleep_on(word)
    }

    fn draw(&self) -> u32 {
        self.drawn.fetch_add(1, Ordering::SeqCst) & NUMBER
    }

    /// No thread has it: the claim takes it, and hands it on if a ticket before its own is still out.
    fn look_at_free(&self, claim: Claim, ticket: Option<u32>) -> Step {
        // Others may sleep, and the thread that gives it back next has to wake them.
        if !self.exchange(0, claim.thread | WAITED_FOR) {
            return Step::Again;
        }
        if let Some(mine) = ticket {
            // This comes once the token is held. Before that, the value might change meanwhile.
            let next = self.next.load(Ordering::Relaxed);
            if next != mine && !is_over(mine, next) {
                self.hand_over();
                return Step::WakeAll;
            }
            if next == mine {
                self.next.store(mine.wrapping_add(1) & NUMBER, Ordering::Relaxed);
            }
        }
        Step::Taken(self.taken(claim, false))
    }

    fn take_kept(&self, claim: Claim, word: u32, turn: u32) -> Step {
        if !self.exchange(word, claim.thread | WAITED_FOR) {
            return Step::Again;
        }
        self.next.store(turn.wrapping_add(1) & NUMBER, Ordering::Relaxed);
        Step::Taken(self.taken(claim, word & FROM_THE_DEAD != 0))
    }

    fn sleep_on(&self, word: u32) -> Step {
        let waited_for = word | WAITED_FOR;
        if word == waited_for || self.exchange(word, waited_for) {
            Step::Sleep(waited_for)
        } else {
            Step::Again
        }
    }

    /// A claim slept on `seen` in vain, longer than any holder needs and any thread takes to wake up. `lives` tells
    /// whether a thread lives.
    pub fn waited_in_vain(
        &self,
        claim: Claim,
        ticket: Option<u32>,
        seen: u32,
        lives: impl FnOnce(u32) -> bool,
    ) -> Step {
        if seen & KEPT != 0 {
            // Dead, stopped, or too slow: the next one's turn. The claim's own ticket comes later.
            let turn = (seen & NUMBER).wrapping_add(1) & NUMBER;
            let next = (seen & !NUMBER) | turn;
            return if self.exchange(seen, next) { Step::WakeAll } else { Step::Again };
        }
        if lives(seen & NUMBER) {
            return Step::Again;
        }
        let wanted = match ticket {
            None => claim.thread | WAITED_FOR,
            Some(_) => {
                let turn = self.next.load(Ordering::Relaxed) & NUMBER;
                KEPT | FROM_THE_DEAD | WAITED_FOR | turn
            }
        };
        match (self.exchange(seen, wanted), ticket) {
            (true, None) => Step::Taken(self.taken(claim, true)),
            (true, Some(_)) => Step::WakeAll,
            (false, _) => Step::Again,
        }
    }

    fn exchange(&self, from: u32, to: u32) -> bool {
        // Release: the thread that gives the token back to a sleeper sees the ticket that the sleeper drew before.
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives the token back. Release.
    #[inline(always)]
    pub fn give_back(&self) -> Wake {
        let (release, acquire) = (Ordering::Release, Ordering::Acquire);
        let word = self.word.load(acquire);
        if word & WAITED_FOR == 0 && self.word.compare_exchange(word, 0, release, acquire).is_ok() {
            return Wake::Nobody;
        }
        self.hand_over()
    }

    #[cold]
    fn hand_over(&self) -> Wake {
        let mut next = self.next.load(Ordering::Relaxed) & NUMBER;
        while next != self.drawn.load(Ordering::SeqCst) & NUMBER && self.was_given_up(next) {
            next = next.wrapping_add(1) & NUMBER;
            self.next.store(next, Ordering::Relaxed);
        }
        if next == self.drawn.load(Ordering::SeqCst) & NUMBER {
            self.word.store(0, Ordering::Release);
            return Wake::One;
        }
        self.word.store(KEPT | WAITED_FOR | next, Ordering::Release);
        fence(Ordering::SeqCst);
        self.pass_over_given_up();
        Wake::All
    }

    /// A claim that was refused wants the token no more: nobody is to wait for its ticket. Afterwards the caller wakes
    /// all sleepers.
    #[cold]
    pub fn give_up(&self, ticket: u32) {
        if is_over(ticket, self.next.load(Ordering::Relaxed) & NUMBER) {
            return;
        }
        self.given_up.fetch_or(1 << (ticket & 63), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.pass_over_given_up();
    }

    /// While it is kept for a ticket that was given up: on to the next.
    fn pass_over_given_up(&self) {
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let turn = word & NUMBER;
            if word & KEPT == 0 || self.given_up.load(Ordering::Relaxed) & 1 << (turn & 63) == 0 {
                return;
            }
            // It may be a ticket that nobody has drawn yet: the next claim draws it.
            if self.exchange(word, (word & !NUMBER) | (turn.wrapping_add(1) & NUMBER)) {
                self.was_given_up(turn);
            }
        }
    }

    /// True if the ticket was given up; it is forgotten.
    fn was_given_up(&self, ticket: u32) -> bool {
        let bit = 1 << (ticket & 63);
        self.given_up.load(Ordering::Relaxed) & bit != 0
            && self.given_up.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// `thread` will not give the token back; or its process has executed another program, and a thread of the one
    /// before had its id. If the word names it, its holder counts as dead.
    pub(crate) fn abandon(&self, thread: u32) {
        let mut word = self.word.load(Ordering::Relaxed);
        // NUMBER: no thread has this id. Others may note meanwhile that they wait.
        while word & KEPT == 0
            && word & NUMBER == thread
            && !self.exchange(word, word & WAITED_FOR | NUMBER)
        {
            word = self.word.load(Ordering::Relaxed);
        }
    }

    /// True if the word says that the holder will not give it back: no need to sleep on that.
    pub(crate) fn says_abandoned(word: u32) -> bool {
        word & KEPT == 0 && word & NUMBER == NUMBER
    }

    /// True if a thread sleeps until it is given back.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.word.load(Ordering::SeqCst) & WAITED_FOR != 0
    }

    /// The word itself, to sleep on.
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// The thread that has the token.
    pub fn holder(&self) -> Option<u32> {
        Self::holder_or_ticket(self.word.load(Ordering::Relaxed)).ok().filter(|thread| *thread != 0)
    }

    /// What a word says: the thread that has the token (zero: none), or the ticket for which it is kept.
    pub(super) fn holder_or_ticket(word: u32) -> Result<u32, u32> {
        if word & KEPT == 0 {
            Ok(word & NUMBER)
        } else {
            Err(word & NUMBER)
        }
    }

    /// The process in control; zero: it was never taken.
    pub fn process(&self) -> u32 {
        self.process.load(Ordering::Relaxed)
    }

    /// Times control changed from one process to another.
    pub fn swaps(&self) -> u32 {
        self.swaps.load(Ordering::Relaxed)
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::new()
    }
}
