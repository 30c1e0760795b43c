//! The BPF objects that the build script makes from `xdp-prog`, embedded in this library.
//!
//! [`crate::load`] loads that of the dataplane; the bench loads its own.

/// Returns the ELF file of the `guideway` programs, aligned for its headers.
#[must_use]
pub fn bytes() -> &'static [u8] {
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/guideway"))
}

/// Returns the ELF file of the bench's programs, aligned for its headers.
#[cfg(feature = "bench")]
#[must_use]
pub fn bench_bytes() -> &'static [u8] {
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/guideway-bench-programs"))
}

/// Names the compiler and the linker that made the object.
#[must_use]
pub fn built_with() -> &'static str {
    env!("GUIDEWAY_BPF_BUILD")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_aligned_and_declares_its_licence() {
        assert_eq!(bytes().as_ptr().align_offset(8), 0);
        let object = aya_obj::Object::parse(bytes()).unwrap();
        assert_eq!(object.license.to_str(), Ok("Dual MIT/GPL"));
        assert!(object.btf.is_some());
    }

    #[test]
    fn program_is_built_for_frames_of_several_buffers() {
        let object = aya_obj::Object::parse(bytes()).unwrap();
        let section = &object.programs["guideway"].section;
        assert!(matches!(
            section,
            aya_obj::ProgramSection::Xdp { frags: true, .. }
        ));
    }
}

/// For tests where no packet comes: the kernel verifies nothing.
#[cfg(test)]
pub(crate) mod testing {
    use std::sync::LazyLock;

    static STUBS: LazyLock<Vec<u8>> = LazyLock::new(|| lab::stub_object(super::bytes()));

    /// Returns the object with programs that let every frame pass.
    pub(crate) fn stubs() -> &'static [u8] {
        &STUBS
    }
}
