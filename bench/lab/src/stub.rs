//! Makes a copy of the product's BPF object whose programs do nothing, for tests of maps and of attaching.
//!
//! Verifying the real programs takes some seconds of CPU time, which is most of such a test's time.

/// Offsets of fields in a section header (`Elf64_Shdr` of elf(5)).
mod section {
    pub(super) const LENGTH: usize = 64;
    pub(super) const TYPE: usize = 4;
    pub(super) const OFFSET: usize = 24;
    pub(super) const SIZE: usize = 32;
    /// In a relocation section: the section that it changes.
    pub(super) const INFO: usize = 44;
}

/// Offsets of fields in a symbol (`Elf64_Sym`).
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
/// The instruction `exit`.
const EXIT: [u8; INSTRUCTION] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// Returns a copy of an object whose XDP programs and classifiers pass every packet. Its maps are unchanged.
///
/// # Panics
///
/// When `object` is not an ELF file as compilers write them for BPF.
pub fn stub_object(object: &[u8]) -> Vec<u8> {
    let mut stub = object.to_vec();
    let table = number(object, 40, 8);
    let header = |index: usize| table + index * section::LENGTH;
    let count = number(object, 60, 2);
    let names = number(object, header(number(object, 62, 2)) + section::OFFSET, 8);
    // The return value of the programs in a section.
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
            // Some section numbers are special values.
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

/// Fills a whole program with instructions. The verifier rejects unreachable code, so no old instruction may remain.
fn return_at_once(program: &mut [u8], verdict: i32) {
    let [a, b, c, d] = verdict.to_le_bytes();
    // `r0 = verdict`
    let set = [0xb7, 0, 0, 0, a, b, c, d];
    let (instructions, _) = program.as_chunks_mut();
    instructions.fill(set);
    *instructions.last_mut().expect("a program ends") = EXIT;
}

/// Reads a little-endian number of an ELF file. All machines that run the tests have little-endian BPF.
fn number(object: &[u8], at: usize, length: usize) -> usize {
    let mut bytes = [0; 8];
    bytes[..length].copy_from_slice(&object[at..at + length]);
    usize::try_from(u64::from_le_bytes(bytes)).expect("machines of 64 bits")
}
