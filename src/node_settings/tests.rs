//! Tests of settings of the cluster: precedence, refusals, and what a restart finds.
//!
//! Invariant: a real database in memory; the target keeps what it was given.
//! Failure: the settings in force are shown.

use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use rstest::rstest;
use service::settings::{Flags, layered};
use tokio::sync::Notify;

use super::*;
use crate::config::Accelerator;

/// A node on which KVM does not work.
#[derive(Debug, Default)]
pub(crate) struct FakeTarget {
    applied: StdMutex<Vec<Config>>,
    /// Nothing is applied any more, as in a process that is killed.
    hangs: AtomicBool,
    /// It was to be applied then.
    begun: Notify,
}

#[tonic::async_trait]
impl Target for FakeTarget {
    async fn try_accelerator(&self, config: &Config) -> Result<(), String> {
        match config.vm.accelerator {
            Accelerator::Kvm => Err("kvm does not work on this node: /dev/kvm is gone".to_owned()),
            Accelerator::Auto | Accelerator::Tcg => Ok(()),
        }
    }

    async fn apply(&self, config: &Config) {
        if self.hangs.load(Ordering::Relaxed) {
            self.begun.notify_one();
            std::future::pending::<()>().await;
        }
        self.applied.lock().unwrap().push(config.clone());
    }
}

/// Settings of a node that sets none itself.
pub(crate) async fn of_plain_node() -> Arc<NodeSettings> {
    let db = Db::in_memory().unwrap();
    started(&db, &Local::default()).await.settings
}

struct Daemon {
    settings: Arc<NodeSettings>,
    target: Arc<FakeTarget>,
    /// With which it has started.
    config: Config,
}

/// A daemon that starts.
async fn started(db: &Db, local: &Local) -> Daemon {
    let accepted = Accepted::load(db, local).await.unwrap();
    let config = local.with(&accepted);
    let target = Arc::new(FakeTarget::default());
    let seen = Arc::clone(&target) as Arc<dyn Target>;
    let tasks = Tasks::default();
    let settings = NodeSettings::new(db.clone(), local.clone(), accepted, seen, tasks);
    Daemon {
        settings: Arc::new(settings),
        target,
        config,
    }
}

fn given(pairs: &[(&str, &str)]) -> Request {
    let given = |value: &str| Given {
        value: value.to_owned(),
        from: "a".to_owned(),
    };
    let pairs = pairs.iter();
    Request {
        settings: pairs.map(|(k, v)| ((*k).to_owned(), given(v))).collect(),
        kept: Kept::None,
    }
}

impl Daemon {
    async fn replace(&self, pairs: &[(&str, &str)]) -> Answer {
        self.settings.replace(given(pairs)).await.unwrap()
    }

    fn applied(&self) -> usize {
        self.target.applied.lock().unwrap().len()
    }
}

fn value<'a>(answer: &'a Answer, key: &str) -> (&'a str, &'a str) {
    let mut all = answer.in_force.iter();
    let found = all.find(|one| one.key.name() == key).unwrap();
    (&found.value, &found.source)
}

fn refusal<'a>(answer: &'a Answer, key: &str) -> &'a str {
    match &answer.outcomes[key] {
        Outcome::Refused(reason) => reason,
        other => panic!("{key}: {other:?}"),
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: Flags<Config>,
}

/// A node with this file and these flags.
fn local(file: &str, flags: &[&str]) -> Local {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlet.toml");
    std::fs::write(&path, file).unwrap();
    let line = ["vmlet", "--config", path.to_str().unwrap()];
    let line = Line::try_parse_from(line.iter().chain(flags)).unwrap();
    Local::from(&layered(&line.settings, []).unwrap())
}

#[tokio::test]
async fn every_setting_replaces_the_default_and_ends_with_its_object() {
    let db = Db::in_memory().unwrap();
    let daemon = started(&db, &Local::default()).await;
    let all = [
        ("log.level", "debug"),
        ("vm.accelerator", "tcg"),
        ("vm.default_vcpus", "3"),
        ("vm.default_memory", "768Mi"),
        ("vm.cpu_model", "host-model"),
        ("images.protocol", "http"),
        ("images.max_download", "5Gi"),
        ("images.max_virtual_size", "6Gi"),
    ];
    assert_eq!(all.map(|(key, _)| key), Key::ALL.map(Key::name));
    let answer = daemon.replace(&all).await;
    for (key, expected) in all {
        assert_eq!(answer.outcomes[key], Outcome::InUse, "{key}");
        assert_eq!(value(&answer, key), (expected, "NodeConfig a"), "{key}");
    }
    assert_eq!(daemon.applied(), 1);
    assert_eq!(daemon.replace(&all).await, answer);
    assert_eq!(daemon.applied(), 1, "nothing has changed");
    let answer = daemon.replace(&[]).await;
    for (key, given) in all {
        let in_force = value(&answer, key);
        assert_eq!(in_force.1, "default", "{key}");
        assert_ne!(in_force.0, given, "{key}");
    }
    let applied = daemon.target.applied.lock().unwrap();
    assert_eq!(applied.last(), Some(&Config::default()));
}

#[tokio::test]
async fn the_file_and_the_flags_of_the_node_win_and_say_so() {
    let db = Db::in_memory().unwrap();
    let own = local(
        "[vm]\ndefault_memory = \"256Mi\"\n",
        &["--log-level", "warn"],
    );
    let daemon = started(&db, &own).await;
    let pairs = [
        ("vm.default_memory", "768Mi"),
        ("log.level", "debug"),
        ("vm.default_vcpus", "2"),
    ];
    let answer = daemon.replace(&pairs).await;
    assert_eq!(value(&answer, "vm.default_memory").0, "256Mi");
    assert_eq!(
        value(&answer, "log.level"),
        ("warn", "flag --log-level"),
        "{answer:?}"
    );
    assert_eq!(value(&answer, "vm.default_vcpus"), ("2", "NodeConfig a"));
    let Outcome::Overridden(source) = &answer.outcomes["vm.default_memory"] else {
        panic!("{answer:?}");
    };
    assert!(
        source.starts_with("file ") && source.ends_with("vmlet.toml"),
        "{source}"
    );
    // Without them, what the cluster has given counts.
    let plain = started(&db, &Local::default()).await;
    assert_eq!(plain.config.vm.default_memory.get(), 768);
}

#[rstest]
#[case::number("vm.default_vcpus", "0")]
#[case::words("vm.default_vcpus", "many")]
#[case::small("vm.default_memory", "1Mi")]
#[case::size("images.max_virtual_size", "0")]
#[case::level("log.level", "a=b=c")]
#[case::word("images.protocol", "ftp")]
#[case::model("vm.cpu_model", "Haswell")]
#[case::broken("vm.accelerator", "kvm")]
#[case::partial("images.max_download", "1Ti")]
#[tokio::test]
async fn a_value_that_is_refused_leaves_that_of_before_and_the_others_count(
    #[case] key: &str,
    #[case] bad: &str,
) {
    let good = |key: &str| match key {
        "vm.default_vcpus" => "3",
        "log.level" => "debug",
        "images.protocol" => "http",
        "vm.cpu_model" => "host-model",
        "vm.accelerator" => "tcg",
        _ => "1Gi",
    };
    let other = match key {
        "log.level" => ("vm.default_vcpus", "7"),
        _ => ("log.level", "trace"),
    };
    let db = Db::in_memory().unwrap();
    let daemon = started(&db, &Local::default()).await;
    for before in [None, Some(good(key))] {
        if let Some(before) = before {
            daemon.replace(&[(key, before)]).await;
        }
        let default = value(&daemon.replace(&[]).await, key).0.to_owned();
        daemon
            .replace(&before.map_or(vec![], |v| vec![(key, v)]))
            .await;
        let answer = daemon.replace(&[(key, bad), other]).await;
        assert!(!refusal(&answer, key).is_empty());
        assert_eq!(answer.outcomes[other.0], Outcome::InUse);
        assert_eq!(value(&answer, other.0).0, other.1);
        assert_eq!(value(&answer, key).0, before.unwrap_or(&default), "{key}");
    }
}

#[tokio::test]
async fn what_no_agent_sends_is_refused() {
    let settings = of_plain_node().await;
    let long = "x".repeat(300);
    let request = given(&[("vm.first_uid", "0"), ("log.level", &long)]);
    let answer = settings.replace(request).await.unwrap();
    assert!(refusal(&answer, "vm.first_uid").contains("no such setting"));
    assert!(refusal(&answer, "log.level").contains("at most 256 bytes"));
    let names: Vec<_> = (0..65).map(|n| format!("k{n}")).collect();
    let pairs: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let refused = settings.replace(given(&pairs)).await.unwrap_err();
    assert!(matches!(refused, Error::TooMany), "{refused:?}");
}

#[tokio::test]
async fn settings_stay_while_not_all_objects_can_be_read() {
    let db = Db::in_memory().unwrap();
    let daemon = started(&db, &Local::default()).await;
    daemon
        .replace(&[("log.level", "debug"), ("vm.default_vcpus", "3")])
        .await;
    let request = Request {
        kept: Kept::All,
        ..given(&[("vm.default_vcpus", "4")])
    };
    let answer = daemon.settings.replace(request).await.unwrap();
    assert_eq!(value(&answer, "log.level").0, "debug");
    assert_eq!(value(&answer, "vm.default_vcpus").0, "4");
}

#[tokio::test]
async fn an_object_that_cannot_be_read_keeps_its_own_settings_alone() {
    let db = Db::in_memory().unwrap();
    let daemon = started(&db, &Local::default()).await;
    let mut both = given(&[("log.level", "debug"), ("vm.default_vcpus", "3")]);
    both.settings.get_mut("log.level").unwrap().from = "b".to_owned();
    daemon.settings.replace(both).await.unwrap();
    let unreadable = Request {
        kept: Kept::Of(["b".to_owned()].into()),
        ..Request::default()
    };
    let answer = daemon.settings.replace(unreadable).await.unwrap();
    assert_eq!(value(&answer, "log.level").0, "debug");
    let plain = Config::default().vm.default_vcpus.to_string();
    assert_eq!(value(&answer, "vm.default_vcpus").0, plain, "a is deleted");
}

#[tokio::test]
async fn a_daemon_that_starts_has_what_was_accepted_by_the_one_before() {
    let db = Db::in_memory().unwrap();
    let before = started(&db, &Local::default()).await;
    before.replace(&[("vm.default_vcpus", "3")]).await;
    before
        .replace(&[("vm.default_vcpus", "0"), ("log.level", "debug")])
        .await;
    let after = started(&db, &Local::default()).await;
    assert_eq!(after.config.vm.default_vcpus.get(), 3);
    assert_eq!(&*after.config.log.level, "debug");
    after.replace(&[]).await;
    let third = started(&db, &Local::default()).await;
    assert_eq!(third.config, Config::default());
}

#[tokio::test]
async fn records_of_a_later_version_count_as_far_as_they_are_understood() {
    let db = Db::in_memory().unwrap();
    let text = r#"{
        "vm.default_vcpus": { "value": "3", "from": "a", "later": 1 },
        "vm.default_memory": { "value": "none", "from": "a" },
        "vm.later": { "value": "1", "from": "a" }
    }"#;
    metadata::node::set_settings(&db, text.to_owned())
        .await
        .unwrap();
    let daemon = started(&db, &Local::default()).await;
    assert_eq!(daemon.config.vm.default_vcpus.get(), 3);
    let plain = Config::default();
    assert_eq!(daemon.config.vm.default_memory, plain.vm.default_memory);
    for broken in ["", "[]", "{"] {
        metadata::node::set_settings(&db, broken.to_owned())
            .await
            .unwrap();
        assert_eq!(started(&db, &Local::default()).await.config, plain);
    }
}

#[tokio::test]
async fn settings_are_recorded_before_they_are_applied_and_count_after_a_kill_in_between() {
    let db = Db::in_memory().unwrap();
    let daemon = started(&db, &Local::default()).await;
    daemon.target.hangs.store(true, Ordering::Relaxed);
    tokio::select! {
        () = daemon.target.begun.notified() => {}
        answer = daemon.replace(&[("log.level", "debug")]) => panic!("{answer:?}"),
    }
    assert_eq!(daemon.applied(), 0);
    let shown = daemon.settings.in_force();
    assert!(shown.iter().all(|one| one.source == "default"), "{shown:?}");
    let next = started(&db, &Local::default()).await;
    assert_eq!(&*next.config.log.level, "debug");
    let shown = next.settings.in_force();
    assert_eq!(shown[0].source, "NodeConfig a", "{shown:?}");
}
