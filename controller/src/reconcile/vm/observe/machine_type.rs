//! Versioned machine types, such as `pc-q35-7.2`.
//!
//! Invariant: only types of the same family are compared.
//! Failure: an alias without a version is none.

/// A machine type with its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachineType<'a> {
    family: &'a str,
    version: (u32, u32),
}

impl<'a> MachineType<'a> {
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (family, version) = text.rsplit_once('-')?;
        let (major, minor) = version.split_once('.')?;
        let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.len() <= 4);
        let version = (number(major)?, number(minor)?);
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        let is_family = !family.is_empty() && family.bytes().all(is_plain);
        is_family.then_some(Self { family, version })
    }

    /// Older, in the same family.
    pub(crate) fn is_below(&self, other: &Self) -> bool {
        self.family == other.family && self.version < other.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers_and_within_a_family() {
        let of = |text| MachineType::parse(text).unwrap();
        assert!(of("pc-q35-7.2").is_below(&of("pc-q35-10.0")));
        assert!(!of("pc-q35-7.2").is_below(&of("pc-q35-7.2")));
        assert!(!of("pc-i440fx-2.0").is_below(&of("pc-q35-7.2")));
        for text in ["q35", "pc-q35", "pc-q35-7", "-7.2", "pc-q35-a.b", "p c-7.2"] {
            assert_eq!(MachineType::parse(text), None, "{text}");
        }
    }
}
