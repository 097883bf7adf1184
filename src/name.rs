//! [`Name`]: what parties are called.

use std::fmt;

use seriatim_ring::control::{NAME_BYTES, NameWords};

/// The name of a producer or worker: 1 to 32 bytes of UTF-8 without control characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name([u8; NAME_BYTES]);

/// A name that a party cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Too short or too long.
    #[error("name {name:?} has {found} bytes, 1 to {NAME_BYTES} are allowed")]
    Length {
        /// The name.
        name: String,
        /// Its length in bytes.
        found: usize,
    },
    /// It has a control character.
    #[error("name {name:?} has the control character {found:?}")]
    Control {
        /// The name.
        name: String,
        /// The first such character.
        found: char,
    },
}

impl Name {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Name, NameError> {
        if let Some(found) = name.chars().find(|c| c.is_control()) {
            return Err(NameError::Control { name: name.into(), found });
        }
        if name.is_empty() || name.len() > NAME_BYTES {
            return Err(NameError::Length { name: name.into(), found: name.len() });
        }
        let mut bytes = [0; NAME_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Name(bytes))
    }

    /// As much of a text as a name has room for, whatever is in it.
    pub(crate) fn cut(text: &str) -> Name {
        let mut bytes = [0; NAME_BYTES];
        let cut = cut(text, NAME_BYTES);
        bytes[..cut.len()].copy_from_slice(cut.as_bytes());
        Name(bytes)
    }

    /// The name as text; what is not UTF-8 (in a damaged region) is left out.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(NAME_BYTES);
        let named = &self.0[..len];
        std::str::from_utf8(named)
            .unwrap_or_else(|e| std::str::from_utf8(&named[..e.valid_up_to()]).unwrap_or(""))
    }

    pub(crate) fn from_words(words: NameWords) -> Name {
        let mut bytes = [0; NAME_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Name(bytes)
    }

    pub(crate) fn words(&self) -> NameWords {
        std::array::from_fn(|i| {
            let bytes = &self.0[i * 8..i * 8 + 8];
            u64::from_le_bytes(std::array::from_fn(|j| bytes[j]))
        })
    }
}

/// As much of a text as so many bytes hold, in whole characters.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_the_region() {
        for text in ["a", "worker-0", "żółw", "12345678901234567890123456789012"] {
            let name = Name::new(text).unwrap();
            assert_eq!(Name::from_words(name.words()), name);
            assert_eq!(name.as_str(), text);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        assert!(matches!(Name::new(""), Err(NameError::Length { found: 0, .. })));
        assert!(matches!(Name::new(&"x".repeat(33)), Err(NameError::Length { found: 33, .. })));
        assert!(matches!(Name::new("a\nb"), Err(NameError::Control { found: '\n', .. })));
    }

    #[test]
    fn a_damaged_name_is_still_shown() {
        assert_eq!(
            Name::from_words([u64::from_le_bytes(*b"ab\xff\xff\xff\xff\xff\xff"), 0, 0, 0]).as_str(),
            "ab"
        );
    }
}
