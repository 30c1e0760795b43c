//! MAC addresses as text and bytes.

use std::fmt;
use std::str::FromStr;

/// The MAC address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A text is not a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not six bytes in hexadecimal with colons between them")]
pub struct ParseMacError;

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let bytes = text.split(':');
        let bytes = bytes.map(|byte| u8::from_str_radix(byte, 16).map_err(|_| ParseMacError));
        let bytes: Vec<u8> = bytes.collect::<Result<_, _>>()?;
        bytes.try_into().map(Self).map_err(|_| ParseMacError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_mac_reads_back() {
        let mac = Mac([2, 0, 0xab, 0, 0, 0x17]);
        assert_eq!(mac.to_string(), "02:00:ab:00:00:17");
        assert_eq!("02:00:ab:00:00:17".parse(), Ok(mac));
        for text in [
            "",
            "02:00:ab:00:00",
            "02:00:ab:00:00:17:00",
            "02:00:ab:00:00:xx",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(ParseMacError), "{text}");
        }
    }
}
