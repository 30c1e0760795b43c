use super::*;

#[test]
fn service_keys_read_back_as_written() {
    for text in [
        "10.99.0.1:80/tcp",
        "[fd00:99::1]:53/udp",
        "0.0.0.0:65535/udp",
        "10.99.0.1:9899/sctp",
    ] {
        assert_eq!(text.parse::<ServiceKey>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "10.99.0.1:80",
        "10.99.0.1/tcp",
        "10.99.0.1:80/icmp",
        "fd00::1:80/tcp",
        "x:1/tcp",
    ] {
        let error = text.parse::<ServiceKey>().unwrap_err().to_string();
        assert!(error.contains(&format!("{text:?}")), "{error}");
    }
}

#[test]
fn addresses_survive_the_tables_spelling() {
    for text in ["10.0.0.1", "fd00::1", "::1"] {
        let address: IpAddr = text.parse().unwrap();
        assert_eq!(address_of(address_key(address)), address);
    }
}
