use super::*;

#[test]
fn directory_on_another_file_system_is_refused_with_the_remedy() {
    let error = Pins::new("/proc/guideway").prepare().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/proc/guideway"), "{text}");
    assert!(text.contains("magic 0x9fa0"), "{text}");
    assert!(text.contains("mount -t bpf"), "{text}");
}

#[test]
fn map_without_a_pin_is_named_with_its_directory() {
    let error = Pins::new("/sys/fs/bpf/nowhere")
        .open_map("LUT")
        .unwrap_err();
    assert!(matches!(&error, PinError::NoMap { map, .. } if map == "LUT"));
    let directory = format!("/sys/fs/bpf/nowhere/v{}/maps", xdp_prog::abi::VERSION);
    assert!(error.to_string().contains(&directory));
}
