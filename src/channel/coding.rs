//! [`Coding`]: how commands become bytes and commands again.

use std::error::Error;

use seriatim_ring::Seq;

/// What went wrong with the bytes of a command, in the words of who codes them.
pub type CodingError = Box<dyn Error + Send + Sync>;

/// How commands of type `C` become bytes, and bytes commands. A sender encodes a command once, into the place where
/// all workers read it; a worker decodes what is delivered to it when it asks for that.
///
/// ```
/// use seriatim::channel::{Channel, Coding, CodingError};
///
/// /// A time and whose it is, in ten bytes that need no decoding.
/// #[derive(Clone, Copy)]
/// struct Ticks;
///
/// impl Coding<(u16, u64)> for Ticks {
///     type Decoded<'a> = (u16, u64);
///
///     fn encoded_len(&self, _: &(u16, u64)) -> Result<usize, CodingError> {
///         Ok(10)
///     }
///
///     fn encode(&self, (who, at): &(u16, u64), room: &mut [u8]) -> Result<(), CodingError> {
///         room[..2].copy_from_slice(&who.to_le_bytes());
///         room[2..].copy_from_slice(&at.to_le_bytes());
///         Ok(())
///     }
///
///     fn decode<'a>(&self, _: u16, bytes: &'a [u8]) -> Result<(u16, u64), CodingError> {
///         let (who, at) = bytes.split_at_checked(2).ok_or("too short")?;
///         Ok((u16::from_le_bytes(who.try_into()?), u64::from_le_bytes(at.try_into()?)))
///     }
///
///     fn kind(&self, (who, _): &(u16, u64)) -> u16 {
///         *who // so that a worker can tell without decoding
///     }
/// }
/// # let region = seriatim::Region::anonymous(&seriatim::Config::new())?;
/// let channel = Channel::<(u16, u64), Ticks>::with(&region, Ticks);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Coding<C: ?Sized> {
    /// What a worker gets: the command, or a view of its bytes.
    type Decoded<'a>;

    /// How many bytes a command takes, exactly: so much room is claimed.
    ///
    /// # Errors
    /// It cannot be encoded.
    fn encoded_len(&self, command: &C) -> Result<usize, CodingError>;

    /// Writes a command into that room, which has whatever was there before.
    ///
    /// # Errors
    /// It cannot be encoded. Nothing is sent then.
    fn encode(&self, command: &C, room: &mut [u8]) -> Result<(), CodingError>;

    /// Reads a command of this kind.
    ///
    /// # Errors
    /// The bytes are none.
    fn decode<'a>(&self, kind: u16, bytes: &'a [u8]) -> Result<Self::Decoded<'a>, CodingError>;

    /// What a command is called for those who do not decode it: below 0xff00; 0 unless one says otherwise.
    fn kind(&self, command: &C) -> u16 {
        let _ = command;
        0
    }
}

/// Commands of any type that serde knows, in the compact format of the crate `postcard`. Takes the feature `serde`,
/// which is on unless one turns it off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Postcard;

#[cfg(feature = "serde")]
impl<C: serde::Serialize + serde::de::DeserializeOwned> Coding<C> for Postcard {
    type Decoded<'a> = C;

    fn encoded_len(&self, command: &C) -> Result<usize, CodingError> {
        Ok(postcard::experimental::serialized_size(command)?)
    }

    fn encode(&self, command: &C, room: &mut [u8]) -> Result<(), CodingError> {
        let expected = room.len();
        let found = postcard::to_slice(command, room)?.len();
        same_length(found, expected)
    }

    fn decode(&self, _: u16, bytes: &[u8]) -> Result<C, CodingError> {
        let (command, rest) = postcard::take_from_bytes(bytes)?;
        same_length(bytes.len() - rest.len(), bytes.len())?;
        Ok(command)
    }
}

#[cfg(feature = "serde")]
fn same_length(found: usize, expected: usize) -> Result<(), CodingError> {
    if found == expected {
        return Ok(());
    }
    Err(format!("it takes {found} bytes, expected {expected}").into())
}

/// Commands that are bytes already. A worker reads them where their sender wrote them.
///
/// ```
/// use seriatim::channel::{Bytes, Channel, Event};
/// use seriatim::{Config, Region, Sequencer, SequencerConfig};
///
/// let region = Region::anonymous(&Config::new())?;
/// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
/// let channel = Channel::<[u8], Bytes>::with(&region, Bytes);
/// let mut receiver = channel.join("w")?;
/// channel.inject("w-own")?.try_send(b"tick")?;
/// loop {
///     if let Event::Command(command) = receiver.recv()? {
///         assert_eq!(command.decode()?, b"tick");
///         break;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes;

impl<C: AsRef<[u8]> + ?Sized> Coding<C> for Bytes {
    type Decoded<'a> = &'a [u8];

    fn encoded_len(&self, command: &C) -> Result<usize, CodingError> {
        Ok(command.as_ref().len())
    }

    fn encode(&self, command: &C, room: &mut [u8]) -> Result<(), CodingError> {
        let bytes = command.as_ref();
        if bytes.len() != room.len() {
            return Err(format!("it has {} bytes, expected {}", bytes.len(), room.len()).into());
        }
        room.copy_from_slice(bytes);
        Ok(())
    }

    fn decode<'a>(&self, _: u16, bytes: &'a [u8]) -> Result<&'a [u8], CodingError> {
        Ok(bytes)
    }
}

/// A command's bytes could not be read as one.
#[derive(Debug, thiserror::Error)]
#[error("the command at index {seq} (kind {kind}, producer {producer}) cannot be decoded: {source}")]
pub struct Miscoded {
    /// Its index.
    pub seq: Seq,
    /// Number of its producer.
    pub producer: u64,
    /// Its kind.
    pub kind: u16,
    /// What is wrong.
    pub source: CodingError,
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_is_no_command() {
        let mut room = vec![0; Postcard.encoded_len(&300u64).unwrap()];
        Postcard.encode(&300u64, &mut room).unwrap();
        let read = |bytes: &[u8]| Coding::<u64>::decode(&Postcard, 0, bytes);
        assert_eq!(read(&room).unwrap(), 300);
        room.push(0);
        assert_eq!(read(&room).unwrap_err().to_string(), "it takes 2 bytes, expected 3");
        assert!(read(&room[..1]).is_err());
    }

    #[test]
    fn who_says_another_length_than_it_takes_is_refused() {
        assert!(Postcard.encode(&300u64, &mut [0; 1]).is_err());
        assert!(Postcard.encode(&300u64, &mut [0; 3]).is_err());
        assert!(Bytes.encode(b"abc", &mut [0; 4]).is_err());
    }
}
