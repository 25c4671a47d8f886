use clap::Parser;
use serde_json::json;

use super::*;
use crate::args::{Args, Command};

fn yaml(line: &str) -> String {
    yaml_of(&line.split(' ').collect::<Vec<_>>())
}

fn yaml_of(words: &[&str]) -> String {
    let args = Args::try_parse_from(words).unwrap();
    let Command::Create(CreateArgs::Vm(args)) = args.command else {
        panic!("not create vm");
    };
    let object = manifest(&args);
    // What is generated is what the kind has.
    let _: VirtualMachine = serde_json::from_value(object.clone()).unwrap();
    super::super::yaml(&object).unwrap()
}

#[test]
fn a_plain_machine() {
    insta::assert_snapshot!(yaml("vmletctl create vm web --image debian --class small"));
}

#[test]
fn a_machine_with_everything() {
    let line = "vmletctl create vm web -n team-a --root-claim disk --cpus 2 --memory 2Gi --run-strategy RerunOnFailure \
        --disk-size 20Gi --storage-class fast --volume data=claim --user-data seed/config --label a=b --ssh-key";
    let key = format!("ssh-ed25519 {} me@here", "A".repeat(68));
    let mut words: Vec<_> = line.split(' ').filter(|word| !word.is_empty()).collect();
    words.push(&key);
    insta::assert_snapshot!(yaml_of(&words));
}

#[test]
fn a_machine_with_networks_and_a_probe() {
    let line = "vmletctl create vm web --image debian --class small --network blue --network team-b/red \
        --mac 52:54:00:12:34:56 --hostname www --readiness-probe info=ready=yes";
    let words: Vec<_> = line.split_whitespace().collect();
    insta::assert_snapshot!(yaml_of(&words), @r#"
    apiVersion: vmlet.dev/v1alpha1
    kind: VirtualMachine
    metadata:
      name: web
    spec:
      className: small
      imageName: debian
      network:
        hostName: www
        interfaces:
        - macAddr: "52:54:00:12:34:56"
          name: eth0
        - name: eth1
          networkRef: blue
        - name: eth2
          networkRef: team-b/red
      readinessProbe:
        guestInfo:
        - key: ready
          value: "yes"
      runStrategy: Always
    "#);
}

#[test]
fn a_probe_is_one_of_three() {
    let json = |text: &str| serde_json::to_value(probe(text).unwrap()).unwrap();
    assert_eq!(json("tcp=22"), json!({"tcpSocket": {"port": 22}}));
    assert_eq!(json("heartbeat"), json!({"guestHeartbeat": {}}));
    assert_eq!(json("info=a"), json!({"guestInfo": [{"key": "a"}]}));
    for wrong in [
        "",
        "tcp",
        "tcp=0",
        "tcp=65536",
        "heartbeat=green",
        "info",
        "info=",
        "http=80",
    ] {
        assert!(probe(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_image_and_a_size_are_needed() {
    for line in [
        "vmletctl create vm web --class small",
        "vmletctl create vm web --image debian",
        "vmletctl create vm web --image debian --class small --memory 1Gi",
        "vmletctl create vm web --image debian --root-claim x --class small",
        "vmletctl create vm web --image debian --class small --run-strategy Sometimes",
        "vmletctl create vm web --image debian --memory 1x",
        "vmletctl create vm web --image debian --memory 0",
        "vmletctl create vm web --image debian --class small --disk-size big",
        "vmletctl create vm web --image debian --class small --no-network --network blue",
    ] {
        assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
}

#[test]
fn a_key_may_be_given_by_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let public = write("k.pub", "ssh-ed25519 AAAA me@here\n");
    assert_eq!(ssh_key("ssh-rsa BBBB").unwrap(), "ssh-rsa BBBB");
    assert_eq!(ssh_key(&public).unwrap(), "ssh-ed25519 AAAA me@here");
    let at = format!("@{public}");
    assert_eq!(ssh_key(&at).unwrap(), "ssh-ed25519 AAAA me@here");
    let private = write("k", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n");
    let two = write("two", "ssh-rsa A\nssh-rsa B\n");
    let options = "no-pty,command=\"/bin/true x\" sk-ssh-ed25519@openssh.com AAAA me";
    assert_eq!(ssh_key(options).unwrap(), options);
    for wrong in [
        private.as_str(),
        &two,
        "/nosuch",
        "ssh-rsa",
        "not a key",
        "ssh-rsa ####",
    ] {
        assert!(ssh_key(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn apply_reports_its_result() {
    let vm = |uid: &str, generation: u32| -> VirtualMachine {
        serde_json::from_value(json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine", "spec": {"running": true},
            "metadata": {"name": "web", "uid": uid, "generation": generation},
        }))
        .unwrap()
    };
    assert_eq!(done(None, &vm("a", 1)), "created");
    assert_eq!(done(Some(&vm("a", 1)), &vm("b", 1)), "created");
    assert_eq!(done(Some(&vm("a", 1)), &vm("a", 1)), "unchanged");
    assert_eq!(done(Some(&vm("a", 1)), &vm("a", 2)), "configured");
}
