//! Bytes as hexadecimal digits.

/// Formats bytes as lower-case digits.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads digits; white space and colons between them are ignored. Returns `None` for any other character, or an
/// odd number of digits.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().filter(|&c| !c.is_whitespace() && c != ':');
    let digits: Option<Vec<u8>> = digits
        .map(|digit| u8::try_from(digit.to_digit(16)?).ok())
        .collect();
    let (pairs, rest) = digits.as_deref()?.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| high << 4 | low);
    rest.is_empty().then(|| bytes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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
