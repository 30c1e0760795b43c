use clap::CommandFactory;

use super::*;

#[test]
fn definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn plugin_of_kubectl_has_the_commands_of_cluster() {
    let typed = |words: &[&str]| {
        let words = words.iter().map(OsString::from);
        Cli::try_parse_from(arguments(words)).map(|cli| match cli.command {
            Command::Cluster(Cluster::Status(status)) => status.at.namespace,
            other => panic!("{other:?}"),
        })
    };
    let plugin = "/usr/local/bin/kubectl-guideway";
    assert_eq!(typed(&[plugin, "status", "-n", "lb"]).unwrap(), "lb");
    assert_eq!(
        typed(&["guideway", "cluster", "status"]).unwrap(),
        DEFAULT_NAMESPACE
    );
    assert_eq!(typed(&[plugin, "run"]).unwrap_err().exit_code(), 2);
}

#[test]
fn watch_takes_an_optional_number_of_seconds() {
    let watch = |arguments: &[&str]| {
        let cli = Cli::try_parse_from(["guideway", "status"].iter().chain(arguments));
        cli.map(|cli| match cli.command {
            Command::Status(show) => show.watch,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(watch(&[]).unwrap(), None);
    assert_eq!(watch(&["--watch"]).unwrap(), Some(1));
    assert_eq!(watch(&["--watch", "5"]).unwrap(), Some(5));
    assert_eq!(watch(&["--watch", "0"]).unwrap_err().exit_code(), 2);
}

#[test]
fn agent_is_found_by_its_socket_and_by_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("edge.yaml");
    // Whatever else is wrong with it: an agent may go on with an earlier one.
    std::fs::write(&file, "hash_seed: x\napi: {socket: /a.sock}\n").unwrap();
    let socket = |socket: Option<&str>, config: Option<&PathBuf>| {
        let agent = Agent {
            socket: socket.map(PathBuf::from),
            config: config.cloned(),
        };
        agent.socket().map_err(|error| error.to_string())
    };
    assert_eq!(socket(Some("/b.sock"), None), Ok("/b.sock".into()));
    assert_eq!(socket(None, Some(&file)), Ok("/a.sock".into()));
    assert!(socket(None, Some(&directory.path().join("none"))).is_err());
    let both = ["guideway", "status", "--socket", "/b.sock", "--config", "x"];
    assert_eq!(Cli::try_parse_from(both).unwrap_err().exit_code(), 2);
}

#[test]
fn json_is_an_output_by_either_name() {
    let output = |words: &[&str]| {
        let words = ["guideway", "services"].iter().chain(words);
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Command::Services(rows) => rows.show.format.output(),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(output(&[]).unwrap(), Output::Table);
    assert_eq!(output(&["--json"]).unwrap(), Output::Json);
    assert_eq!(output(&["-o", "json"]).unwrap(), Output::Json);
    assert_eq!(output(&["-o", "wide"]).unwrap(), Output::Wide);
    assert_eq!(
        output(&["--json", "-o", "yaml"]).unwrap_err().exit_code(),
        2
    );
}

#[test]
fn controller_takes_networks_as_the_agents_file_does() {
    let controller = |networks: &str| {
        let option = format!("--external-ips={networks}");
        let cli = Cli::try_parse_from(["guideway", "controller", &option]);
        cli.map(|cli| match cli.command {
            Command::Controller(controller) => controller.external_ips,
            other => panic!("{other:?}"),
        })
    };
    let expected = ["192.0.2.0/24", "2001:db8::7/128"].map(|text| text.parse().unwrap());
    assert_eq!(controller("192.0.2.0/24,2001:db8::7").unwrap(), expected);
    for wrong in ["192.0.2.1/24", "web"] {
        assert_eq!(controller(wrong).unwrap_err().exit_code(), 2, "{wrong}");
    }
}

#[test]
fn which_takes_both_families() {
    let which = |service: &str, from: &str| {
        Cli::try_parse_from(["guideway", "which", "--service", service, "--from", from])
    };
    assert!(which("192.0.2.10:80/tcp", "198.51.100.7:40000").is_ok());
    assert!(which("[2001:db8::1]:53/udp", "[2001:db8::7]:40000").is_ok());
    for name in ["web", "default/web", "default/web:http", "web:80"] {
        assert!(which(name, "198.51.100.7:40000").is_ok(), "{name}");
    }
    assert_eq!(
        which("2001:db8::1:53/udp", "[::1]:1")
            .unwrap_err()
            .exit_code(),
        2
    );
    assert_eq!(
        which("192.0.2.10:80", "198.51.100.7:1")
            .unwrap_err()
            .exit_code(),
        2
    );
    assert_eq!(
        which("192.0.2.10:80/tcp", "198.51.100.7")
            .unwrap_err()
            .exit_code(),
        2
    );
}
