//! Two ends, one of which moves to another process, and what they say.

use sanshim_core::session::{Control, Suspension, LARGEST_BODY};

/// The end whose control moves, and its peer. `ends[0]` connected.
pub(crate) struct Ends {
    ends: [Suspension; 2],
    lines: String,
}

const WIDTH: usize = 34;

impl Ends {
    pub(crate) fn new() -> Ends {
        Ends { ends: Default::default(), lines: String::new() }
    }

    pub(crate) fn lines(self, left: &str, right: &str) -> String {
        format!("{left:<WIDTH$}{:^28}{right}\n{}", "", self.lines)
    }

    /// What end `of` does.
    pub(crate) fn does(&mut self, of: usize, what: &str) {
        let indent = if of == 0 { 0 } else { 62 };
        self.lines.push_str(format!("{:indent$}{what}", "").trim_end());
        self.lines.push('\n');
    }

    /// End `from` says something, drawn now; it arrives by [`arrives`](Self::arrives).
    fn says(&mut self, from: usize, control: &Control) {
        let name = format!("{control:?}").replace(['(', ')'], " ");
        let name = name.trim_end();
        let text = if from == 0 {
            format!("{:WIDTH$}-- {:-<56}>", "", format!("{name} "))
        } else {
            format!("{:WIDTH$}<{:->56} --", "", format!(" {name}"))
        };
        self.lines.push_str(&text);
        self.lines.push('\n');
    }

    fn arrives(&self, to: usize, control: &Control) {
        let body = control.encode();
        let mut copy = [0; LARGEST_BODY];
        let size = control.kind().body_size() as usize;
        copy[..size].copy_from_slice(&body[..size]);
        let arrived = Control::decode(control.kind(), &copy).expect("valid").expect("has a body");
        assert_eq!(self.ends[to].obey(&arrived, to == 0), Ok(true));
    }

    /// Asks, without the message arriving yet.
    pub(crate) fn asks(&mut self, of: usize) -> Control {
        let suspend = self.ends[of].ask().expect("nothing is in its way");
        self.says(of, &suspend);
        suspend
    }

    pub(crate) fn hears(&mut self, of: usize, control: &Control) {
        self.arrives(of, control);
    }

    pub(crate) fn answers(&mut self, of: usize) {
        let answer = self.ends[of].answer().expect("asked");
        self.says(of, &answer);
        self.ends[of].answered();
        self.arrives(1 - of, &answer);
        assert!(self.ends[1 - of].is_suspended());
    }

    pub(crate) fn resumes(&mut self, of: usize) {
        let resume = self.ends[of].resumption().expect("asked");
        self.says(of, &resume);
        self.ends[of].resumed();
        self.arrives(1 - of, &resume);
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.ends.iter().all(|end| !end.holds_back())
    }
}
