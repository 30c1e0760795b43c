//! The object of the product with programs that do nothing, for tests of maps and of attaching.
//!
//! What the verifier takes for the real ones, some seconds of a CPU, is most of such a test's time.

/// What a section header has, by its place in it (`Elf64_Shdr` of elf(5)).
mod section {
    pub(super) const LENGTH: usize = 64;
    pub(super) const TYPE: usize = 4;
    pub(super) const OFFSET: usize = 24;
    pub(super) const SIZE: usize = 32;
    /// Of relocations: the section that they change.
    pub(super) const INFO: usize = 44;
}

/// What a symbol has (`Elf64_Sym`).
mod symbol {
    pub(super) const LENGTH: usize = 24;
    pub(super) const INFO: usize = 4;
    pub(super) const SECTION: usize = 6;
    pub(super) const VALUE: usize = 8;
    pub(super) const SIZE: usize = 16;
}

const SHT_SYMTAB: usize = 2;
const SHT_REL: usize = 9;
const STT_FUNC: u8 = 2;
const INSTRUCTION: usize = 8;
/// `exit`.
const EXIT: [u8; INSTRUCTION] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// Returns a copy of an object whose XDP programs and classifiers let everything pass; its maps are the same.
///
/// # Panics
///
/// When it is no ELF file as compilers write them for BPF.
pub fn stub_object(object: &[u8]) -> Vec<u8> {
    let mut stub = object.to_vec();
    let table = number(object, 40, 8);
    let header = |index: usize| table + index * section::LENGTH;
    let count = number(object, 60, 2);
    let names = number(object, header(number(object, 62, 2)) + section::OFFSET, 8);
    // Returned in place of a verdict.
    let verdict = |index: usize| {
        let name = &object[names + number(object, header(index), 4)..];
        match name {
            [b'x', b'd', b'p', ..] => Some(2_i32),              // XDP_PASS
            _ if name.starts_with(b"classifier\0") => Some(-1), // TC_ACT_UNSPEC
            _ => None,
        }
    };
    for index in 0..count {
        let at = header(index);
        let kind = number(object, at + section::TYPE, 4);
        let (begin, length) = (
            number(object, at + section::OFFSET, 8),
            number(object, at + section::SIZE, 8),
        );
        if kind == SHT_REL && verdict(number(object, at + section::INFO, 4)).is_some() {
            stub[at + section::SIZE..][..8].fill(0);
        }
        if kind != SHT_SYMTAB {
            continue;
        }
        for symbol in (begin..begin + length).step_by(symbol::LENGTH) {
            let holder = number(object, symbol + symbol::SECTION, 2);
            // Some numbers mean no section.
            if object[symbol + symbol::INFO] & 0xf != STT_FUNC || holder >= count {
                continue;
            }
            if let Some(verdict) = verdict(holder) {
                let code = number(object, header(holder) + section::OFFSET, 8)
                    + number(object, symbol + symbol::VALUE, 8);
                let length = number(object, symbol + symbol::SIZE, 8);
                return_at_once(&mut stub[code..][..length], verdict);
            }
        }
    }
    stub
}

/// Fills a program: the verifier refuses code that is never reached.
fn return_at_once(program: &mut [u8], verdict: i32) {
    let [a, b, c, d] = verdict.to_le_bytes();
    // `r0 = verdict`
    let set = [0xb7, 0, 0, 0, a, b, c, d];
    let (instructions, _) = program.as_chunks_mut();
    instructions.fill(set);
    *instructions.last_mut().expect("a program ends") = EXIT;
}

/// Reads a number of an ELF file: little-endian, as BPF is on all machines that run the tests.
fn number(object: &[u8], at: usize, length: usize) -> usize {
    let mut bytes = [0; 8];
    bytes[..length].copy_from_slice(&object[at..at + length]);
    usize::try_from(u64::from_le_bytes(bytes)).expect("machines of 64 bits")
}
