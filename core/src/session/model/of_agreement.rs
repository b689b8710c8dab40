//! Model check of the word by which both ends agree to use the session.

use super::agreement::{Agreement, AgreementState, Role};
use super::sync::{AtomicU32, Ordering};
use super::{bounded, Reached};
use loom::sync::Arc;
use loom::thread;

/// An offered session, whose loom object is made here.
fn offered() -> Arc<Agreement> {
    let agreement = Arc::new(Agreement::new());
    agreement.state();
    agreement
}

/// However offering, taking, entering and going back meet: both ends use the session, or neither sends there. The
/// connector's that entered first may go back, and then the acceptor's never enters.
#[test]
fn both_ends_use_the_session_or_neither() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let agreement = offered();
        let acceptor = thread::spawn({
            let agreement = agreement.clone();
            move || agreement.decide(AgreementState::Taken) && agreement.enter(Role::Acceptor)
        });
        let entered = agreement.enter(Role::Connector);
        let is_back = agreement.withdraw();
        let settled = acceptor.join().unwrap();
        assert_eq!(settled, !is_back, "one of them uses it alone");
        assert!(!settled || entered);
        assert_eq!(
            agreement.state(),
            if settled { AgreementState::Settled } else { AgreementState::Withdrawn }
        );
        seen.note((entered.into(), settled.into()));
    });
    assert_eq!(reached.states(), [(0, 0), (1, 0), (1, 1)]);
}

/// Either end goes back at any time, both at once too: what one was told, the other finds.
#[test]
fn who_goes_back_is_believed_by_both() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let agreement = offered();
        assert!(agreement.decide(AgreementState::Taken));
        let acceptor = thread::spawn({
            let agreement = agreement.clone();
            move || {
                let entered = agreement.enter(Role::Acceptor);
                (entered, agreement.withdraw())
            }
        });
        let connector = thread::spawn({
            let agreement = agreement.clone();
            move || agreement.enter(Role::Connector)
        });
        let entered = connector.join().unwrap();
        let is_back = agreement.withdraw();
        let (settled, is_back_too) = acceptor.join().unwrap();
        assert_eq!(is_back, is_back_too);
        assert_eq!(settled, !is_back);
        seen.note((entered.into(), settled.into()));
    });
    assert_eq!(reached.states(), [(0, 0), (1, 0), (1, 1)]);
}

/// An end that finds the other as far as itself sees all that the other wrote before.
#[test]
fn what_was_written_before_is_there() {
    bounded(3, || {
        let agreement = offered();
        let segment = Arc::new(AtomicU32::new(0));
        segment.load(Ordering::Relaxed);
        assert!(agreement.decide(AgreementState::Taken));
        let connector = thread::spawn({
            let (agreement, segment) = (agreement.clone(), segment.clone());
            move || {
                segment.store(1, Ordering::Relaxed);
                agreement.enter(Role::Connector)
            }
        });
        if agreement.state() == AgreementState::awaited_by(Role::Acceptor) {
            assert!(agreement.enter(Role::Acceptor));
            assert_eq!(segment.load(Ordering::Relaxed), 1);
        }
        assert!(connector.join().unwrap());
    });
}
