use super::*;

fn config() -> v1::ContainerConfig {
    v1::ContainerConfig {
        command: vec!["sh".into()],
        args: vec!["-c".into(), "true".into()],
        ..Default::default()
    }
}

fn with(security: v1::LinuxContainerSecurityContext) -> v1::ContainerConfig {
    v1::ContainerConfig {
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(security),
            ..Default::default()
        }),
        ..config()
    }
}

#[test]
fn command_variables_and_directory_are_those_of_the_process() {
    let mut config = config();
    config.envs = vec![v1::KeyValue {
        key: "A".into(),
        value: b"b=c".to_vec(),
    }];
    config.tty = true;
    let process = process(&config).unwrap().unwrap();
    assert_eq!(process.start.command, ["sh", "-c", "true"]);
    assert_eq!(process.start.environment, ["A=b=c"]);
    assert_eq!(process.start.directory, "/");
    assert_eq!(process.start.terminal, Some(FIRST_SIZE));
    assert_eq!(process.stop_signal, 15);
}

#[test]
fn profiles_and_paths_are_those_of_an_unprivileged_process() {
    let mut security = v1::LinuxContainerSecurityContext {
        seccomp: Some(v1::SecurityProfile {
            profile_type: ProfileType::Localhost.into(),
            localhost_ref: "localhost//p.json".into(),
        }),
        masked_paths: vec!["/proc/kcore".into()],
        readonly_paths: vec!["/proc/sys".into()],
        readonly_rootfs: true,
        ..Default::default()
    };
    let made = process(&with(security.clone())).unwrap().unwrap();
    assert_eq!(made.seccomp.0, Profile::Localhost("/p.json".into()));
    assert_eq!(made.seccomp.1, made.start.confinement.unwrap().capabilities);
    let view = made.start.view.unwrap();
    assert_eq!(view.masked, ["/proc/kcore"]);
    assert_eq!(view.read_only, ["/proc/sys"]);
    security.privileged = true;
    let privileged = process(&with(security.clone())).unwrap().unwrap();
    assert_eq!(privileged.seccomp, (Profile::Unconfined, Vec::new()));
    assert_eq!(privileged.start.view, None);
    let confinement = privileged.start.confinement.unwrap();
    assert!(confinement.read_only_root && confinement.capabilities.len() == 64);
    security.readonly_rootfs = false;
    let privileged = process(&with(security)).unwrap().unwrap();
    assert_eq!(privileged.start.confinement, None);
}

#[test]
fn what_a_guest_cannot_apply_is_refused_by_its_field() {
    let refused = |config: &v1::ContainerConfig, word: &str| {
        let error = process(config).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    assert!(process(&Default::default()).unwrap().is_none());
    let localhost = v1::SecurityProfile {
        profile_type: ProfileType::Localhost.into(),
        localhost_ref: "/p.json".into(),
    };
    let apparmor = v1::LinuxContainerSecurityContext {
        apparmor: Some(localhost),
        ..Default::default()
    };
    refused(&with(apparmor), "security_context.apparmor");
    for path in ["", "/", "proc/kcore", "/\0"] {
        let paths = vec![path.to_owned()];
        let masked = v1::LinuxContainerSecurityContext {
            masked_paths: paths.clone(),
            ..Default::default()
        };
        refused(&with(masked), "security_context.masked_paths");
        let read_only = v1::LinuxContainerSecurityContext {
            readonly_paths: paths,
            ..Default::default()
        };
        refused(&with(read_only), "security_context.readonly_paths");
    }
    let user = v1::LinuxContainerSecurityContext {
        run_as_user: Some(v1::Int64Value { value: -1 }),
        ..Default::default()
    };
    refused(&with(user), "run_as_user");
    let capability = v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            add_capabilities: vec!["FLY".into()],
            ..Default::default()
        }),
        ..Default::default()
    };
    refused(&with(capability), "CAP_FLY");
    let mut secret = config();
    secret.envs = vec![v1::KeyValue {
        key: "K".into(),
        value: b"hush\0".to_vec(),
    }];
    let error = process(&secret).unwrap_err().to_string();
    assert!(!error.contains("hush"), "{error}");
}

#[test]
fn capabilities_are_added_to_and_dropped_from_the_default_set() {
    let set = |add: &[&str], drop: &[&str]| {
        let words = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let given = v1::Capability {
            add_capabilities: words(add),
            drop_capabilities: words(drop),
            ..Default::default()
        };
        capabilities::sets(&given).unwrap().0
    };
    assert_eq!(set(&[], &[]).len(), 14);
    assert_eq!(set(&["net_admin"], &["ALL"]), [12]);
    assert_eq!(set(&[], &["CAP_CHOWN"]).len(), 13);
    assert_eq!(set(&["ALL"], &["CHOWN"]).len(), caps::all().len() - 1);
}

#[test]
fn stop_signals_go_by_their_names() {
    for (signal, number) in [
        (v1::Signal::RuntimeDefault, 15),
        (v1::Signal::Sigkill, 9),
        (v1::Signal::Sigcld, 17),
        (v1::Signal::Sigusr1, 10),
    ] {
        assert_eq!(signal::number(signal.into()).unwrap(), number, "{signal:?}");
    }
    let refused = signal::number(v1::Signal::Sigrtmin.into()).unwrap_err();
    assert!(refused.to_string().contains("SIGRTMIN"), "{refused}");
}
