//! Bytes as hexadecimal digits, for people who look at frames.

/// Writes bytes as digits.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a MAC address.
pub fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// Reads digits, with blanks and colons between them as other tools write them; nothing where they are
/// none, or an odd number of them.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().filter(|&c| !c.is_whitespace() && c != ':');
    let digits: Option<Vec<u8>> = digits
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
        })
        .collect();
    let digits = digits?;
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    Some(
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_is_written_as_other_tools_do() {
        assert_eq!(mac([2, 0, 0x5e, 0xff, 0x10, 1]), "02:00:5e:ff:10:01");
    }

    #[test]
    fn digits_are_read_as_written() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&bytes)), Some(bytes));
        assert_eq!(decode("DE:ad be\nef"), Some(vec![0xde, 0xad, 0xbe, 0xef]));
        for text in ["0", "0g", "0x00", "é0"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
