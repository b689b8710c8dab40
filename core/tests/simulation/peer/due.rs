//! Control messages that are due: a copy of the order of `stream/due_messages.rs`.

use sanshim_core::session::{Complete, Control};

/// Control messages that are due, one of each kind, in the order in which they go.
#[derive(Debug, Default)]
pub(crate) struct Due(pub(super) [Option<Control>; 9]);

fn place(control: &Control) -> usize {
    match control {
        Control::RestInMessages(..) => 0,
        Control::TransferComplete(Complete { behaviour: None, .. }) => 1,
        Control::TransferComplete(_) => 2,
        Control::SendInMessages(..) => 3,
        Control::Advertisement(_) => 4,
        Control::EnterMode(..) => 5,
        Control::Rediscover => 6,
        Control::ResizeAnswer(_) => 7,
        Control::ResizeRequest(_) => 8,
        other => panic!("{other:?} is never due"),
    }
}

impl Due {
    pub(crate) fn note(&mut self, control: Control) {
        self.0[place(&control)] = Some(control);
    }

    pub(crate) fn take_advertisement(&mut self) -> Option<Control> {
        self.0[4].take()
    }

    pub(crate) fn any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }
}
