//! The library's file says in a *label* which version it is. `sanctl` reads it there without loading the library.

use crate::registry::LAYOUT_VERSION;

/// The section of `libsanshim.so` that holds a label.
pub const SECTION: &str = ".sanshim";
/// A label's size in bytes.
pub const SIZE: usize = 32;

const MAGIC: [u8; 8] = *b"sanshim\0";
const VERSION_AT: usize = 12;

/// What a library's label says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The version of the layout of the registry's files, which `sanctl` reads.
    pub layout: u32,
    /// The package's version, as `0.1.0`.
    pub version: String,
}

/// The label of what is built from this source: a magic number, the layout's version, the package's version.
#[must_use]
pub const fn own() -> [u8; SIZE] {
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    assert!(version.len() < SIZE - VERSION_AT);
    let (mut label, layout) = ([0; SIZE], LAYOUT_VERSION.to_le_bytes());
    let mut at = 0;
    while at < SIZE {
        label[at] = match at {
            0..8 => MAGIC[at],
            8..VERSION_AT => layout[at - 8],
            _ if at - VERSION_AT < version.len() => version[at - VERSION_AT],
            _ => 0,
        };
        at += 1;
    }
    label
}

impl Label {
    /// The label in a section; `None` if the section holds something else.
    #[must_use]
    pub fn parse(section: &[u8]) -> Option<Label> {
        let label: &[u8; SIZE] = section.first_chunk()?;
        let version = label[VERSION_AT..].split(|&byte| byte == 0).next()?;
        let version = std::str::from_utf8(version).ok().filter(|text| text.is_ascii())?.to_owned();
        let layout = u32::from_le_bytes(*label[8..].first_chunk()?);
        label.starts_with(&MAGIC).then_some(Label { layout, version })
    }

    /// True if a `sanctl` of this source can read what programs under the library publish.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.layout == LAYOUT_VERSION
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_was_made() {
        let label = Label::parse(&own()).unwrap();
        assert_eq!((label.version.as_str(), label.fits()), (env!("CARGO_PKG_VERSION"), true));
        let mut other = own();
        other[8] += 1;
        assert!(!Label::parse(&other).unwrap().fits());
    }

    #[test]
    fn anything_else_is_none() {
        assert_eq!(Label::parse(b"sanshim\0"), None);
        assert_eq!(Label::parse(&[0; SIZE]), None);
        let mut strange = own();
        strange[VERSION_AT] = 0xff;
        assert_eq!(Label::parse(&strange), None);
    }
}
