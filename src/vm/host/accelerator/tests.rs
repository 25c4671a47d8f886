//! The choice with emulators that are scripts, and with the real one.
//!
//! Invariant: the choice always comes in time and always has a reason.
//! Failure: the reason that came instead is shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libvirt::FakeHypervisor;
use nix::unistd::{User, getgid, getuid};
use tempfile::TempDir;

use super::probe;
use super::{Accelerator, Choice, Host, Setting, choose};
use crate::testkit::Node;

const HOUR: Duration = Duration::from_secs(3600);

/// An emulator that does `body` and counts its runs, beside a device that may be anything.
struct FakeEmulator {
    dir: TempDir,
    host: Host,
}

impl FakeEmulator {
    fn doing(body: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let emulator = dir.path().join("emulator");
        let runs = dir.path().join("runs");
        let script = format!("#!/bin/sh\necho \"$@\" >>{}\n{body}\n", runs.display());
        write_program(&emulator, &script);
        let device = dir.path().join("kvm");
        fs::write(&device, "").unwrap();
        let host = Host {
            device,
            // A machine that is slow is not what these tests are about.
            deadline: HOUR,
            quick: HOUR,
            ..Host::new(emulator, getuid().as_raw(), getgid().as_raw(), dir.path())
        };
        Self { dir, host }
    }

    fn runs(&self) -> usize {
        let log = fs::read_to_string(self.dir.path().join("runs"));
        log.unwrap_or_default().lines().count()
    }

    async fn choose(&self, setting: Setting) -> Result<Choice, String> {
        choose(setting, &self.host).await.map_err(|e| e.to_string())
    }
}

/// Writes by another process: were the file open for writing here while a parallel test forks, it
/// could not be executed until that child has let go of it.
fn write_program(path: &Path, text: &str) {
    let status = Command::new("sh")
        .args(["-c", "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .arg(text)
        .status();
    assert!(status.unwrap().success());
}

#[tokio::test]
async fn kvm_is_chosen_when_the_guest_has_executed() {
    let fake = FakeEmulator::doing("exit 85");
    for setting in [Setting::Auto, Setting::Kvm] {
        let choice = fake.choose(setting).await.unwrap();
        assert_eq!(choice.accelerator, Accelerator::Kvm);
        assert!(choice.reason.contains("executed"), "{}", choice.reason);
    }
    assert_eq!(fake.runs(), 1, "the second answer is remembered");
    let leftovers = fake.dir.path().join("accelerator-probe.raw");
    assert!(!leftovers.exists());
}

#[tokio::test]
async fn the_probe_runs_the_boot_sector_from_standard_input() {
    let fake =
        FakeEmulator::doing("test \"$(head -c 4 | od -An -tx1)\" = \" b0 2a e6 f4\" && exit 85");
    assert_eq!(
        fake.choose(Setting::Auto).await.unwrap().accelerator,
        Accelerator::Kvm
    );
}

#[tokio::test]
async fn what_qemu_complains_of_is_the_reason() {
    let fake = FakeEmulator::doing(
        "echo 'Could not access KVM kernel module: Permission denied' >&2; exit 1",
    );
    let choice = fake.choose(Setting::Auto).await.unwrap();
    assert_eq!(choice.accelerator, Accelerator::Tcg);
    assert!(
        choice.reason.contains("Permission denied"),
        "{}",
        choice.reason
    );
    assert_eq!(fake.choose(Setting::Auto).await.unwrap(), choice);
    assert_eq!(fake.runs(), 1);
    let refused = fake.choose(Setting::Kvm).await.unwrap_err();
    assert!(refused.contains("kvm is required") && refused.contains("Permission denied"));
    assert_eq!(fake.runs(), 2, "a demand looks again");
}

#[tokio::test]
async fn a_guest_that_hangs_is_killed_at_the_deadline() {
    let mut fake = FakeEmulator::doing("echo $$ >\"$(dirname $0)/pid\"; exec sleep 600");
    // By then it has identified itself.
    fake.host.deadline = Duration::from_secs(6);
    let choice = fake.choose(Setting::Auto).await.unwrap();
    assert_eq!(choice.accelerator, Accelerator::Tcg);
    let expected = "opens, but a probe guest did not execute within 6 s";
    assert!(choice.reason.ends_with(expected), "{}", choice.reason);
    let pid = fs::read_to_string(fake.dir.path().join("pid")).unwrap();
    assert!(
        !fs::exists(format!("/proc/{}", pid.trim())).unwrap(),
        "it is gone"
    );
}

#[tokio::test]
async fn a_device_that_is_slower_than_none_is_not_used() {
    let mut fake = FakeEmulator::doing("case \"$*\" in *kvm*) sleep 5;; esac; exit 85");
    fake.host.quick = Duration::from_secs(1);
    let choice = fake.choose(Setting::Auto).await.unwrap();
    assert_eq!(choice.accelerator, Accelerator::Tcg);
    assert!(choice.reason.contains("ms without it"), "{}", choice.reason);
    assert_eq!(fake.runs(), 2);
}

#[tokio::test]
async fn a_new_emulator_device_or_boot_is_probed_again() {
    let mut fake = FakeEmulator::doing("exit 85");
    fake.choose(Setting::Auto).await.unwrap();
    fs::set_permissions(&fake.host.device, fs::Permissions::from_mode(0o640)).unwrap();
    fake.choose(Setting::Auto).await.unwrap();
    let script = fs::read_to_string(&fake.host.emulator).unwrap();
    write_program(&fake.host.emulator, &format!("{script}# newer\n"));
    fake.choose(Setting::Auto).await.unwrap();
    assert_eq!(fake.runs(), 3);
    let boot = fake.dir.path().join("boot_id");
    fs::write(&boot, "another\n").unwrap();
    fake.host = fake.host.with_boot_id_file(&boot);
    fake.choose(Setting::Auto).await.unwrap();
    fake.choose(Setting::Auto).await.unwrap();
    assert_eq!(fake.runs(), 4);
}

#[tokio::test]
async fn a_broken_or_stale_memory_is_no_answer() {
    let fake = FakeEmulator::doing("echo no >&2; exit 1");
    let cache = fake.dir.path().join("accelerator.json");
    fs::write(&cache, "{\"verdict\": \"executed\"").unwrap();
    fake.choose(Setting::Auto).await.unwrap();
    let old: serde_json::Value = serde_json::from_slice(&fs::read(&cache).unwrap()).unwrap();
    for at in [0, u64::MAX] {
        let mut changed = old.clone();
        changed["at"] = at.into();
        fs::write(&cache, changed.to_string()).unwrap();
        assert_eq!(
            fake.choose(Setting::Auto).await.unwrap().accelerator,
            Accelerator::Tcg
        );
    }
    assert_eq!(fake.runs(), 3, "too old, and from the future");
}

#[tokio::test]
async fn without_a_device_nothing_is_run() {
    let mut fake = FakeEmulator::doing("exit 85");
    fake.host.device = fake.dir.path().join("absent");
    let choice = fake.choose(Setting::Auto).await.unwrap();
    assert_eq!(choice.accelerator, Accelerator::Tcg);
    assert!(
        choice.reason.ends_with("absent does not exist"),
        "{}",
        choice.reason
    );
    assert!(fake.choose(Setting::Kvm).await.is_err());
    assert_eq!(
        fake.choose(Setting::Tcg).await.unwrap().accelerator,
        Accelerator::Tcg
    );
    assert_eq!(fake.runs(), 0);
}

#[test]
fn a_setting_has_three_values() {
    for (word, setting) in [
        ("auto", Setting::Auto),
        ("kvm", Setting::Kvm),
        ("tcg", Setting::Tcg),
    ] {
        assert_eq!(word.parse::<Setting>().unwrap(), setting);
    }
    assert!("KVM".parse::<Setting>().is_err());
}

/// The real emulator, as the user that libvirt would run it as.
fn real(dir: &TempDir) -> Host {
    // The directory stays closed to that user, as the daemon's own is.
    let user = User::from_name("libvirt-qemu")
        .unwrap()
        .expect("libvirt's QEMU user");
    let uid = user.uid.as_raw();
    let gid = user.gid.as_raw();
    Host::new("/usr/bin/qemu-system-x86_64", uid, gid, dir.path())
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_boot_sector_executes_in_the_real_emulator() {
    let dir = TempDir::new().unwrap();
    let host = Host {
        deadline: Duration::from_secs(60),
        ..real(&dir)
    };
    probe::time(&host, Accelerator::Tcg).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_real_device_is_chosen_exactly_when_a_demand_for_it_is_met() {
    let dir = TempDir::new().unwrap();
    for uid in [0, real(&dir).uid] {
        let host = Host { uid, ..real(&dir) };
        let choice = choose(Setting::Auto, &host).await.unwrap();
        println!("user {uid}: {choice:?}");
        assert!(!choice.reason.is_empty());
        let is_chosen = choice.accelerator == Accelerator::Kvm;
        let demanded = choose(Setting::Kvm, &host).await;
        assert_eq!(demanded.is_ok(), is_chosen, "{choice:?}, {demanded:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_over_when_the_device_changes_or_some_minutes_have_passed() {
    let fake = FakeEmulator::doing("exit 1");
    let first = fake.choose(Setting::Auto).await.unwrap();
    assert!(first.is_fallback(Setting::Auto));
    let again = async || {
        super::choose_again(Setting::Auto, &fake.host)
            .await
            .unwrap()
    };
    assert_eq!(again().await, first, "a moment ago");
    write_program(&fake.dir.path().join("emulator"), "#!/bin/sh\nexit 85\n");
    assert_eq!(again().await.accelerator, Accelerator::Kvm);
}

#[tokio::test]
async fn probes_that_fail_in_a_row_are_further_and_further_apart() {
    let fake = FakeEmulator::doing("exit 1");
    fake.choose(Setting::Auto).await.unwrap();
    let cache = fake.dir.path().join("accelerator.json");
    for (seconds, runs) in [(200, 1), (301, 2), (500, 2), (601, 3)] {
        let mut entry: serde_json::Value =
            serde_json::from_slice(&fs::read(&cache).unwrap()).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        entry["at"] = (now.as_secs() - seconds).into();
        fs::write(&cache, entry.to_string()).unwrap();
        super::choose_again(Setting::Auto, &fake.host)
            .await
            .unwrap();
        assert_eq!(fake.runs(), runs, "after {seconds} s");
    }
    // An earlier version counts none.
    assert_eq!(super::pause(0), Duration::from_secs(300));
    assert_eq!(super::pause(u32::MAX), Duration::from_secs(19_200));
}

#[tokio::test]
async fn a_node_that_emulates_takes_kvm_once_it_works_and_keeps_it() {
    let auto = |settings: &mut crate::vm::Settings| settings.accelerator = Setting::Auto;
    let node = Node::with_settings(FakeHypervisor::default(), auto).await;
    let containers = &node.containers;
    let fake = FakeEmulator::doing("exit 1");
    containers.reconsider_on(&fake.host).await;
    assert_eq!(fake.runs(), 0, "nothing has been chosen yet");

    let refused = fake.choose(Setting::Auto).await.unwrap();
    *containers.accelerator.lock().unwrap() = Some(refused.clone());
    containers.reconsider_on(&fake.host).await;
    assert_eq!(containers.emulated_because(), Some(refused.reason));
    fs::remove_file(&fake.host.device).unwrap();
    containers.reconsider_on(&fake.host).await;
    let because = containers.emulated_because().unwrap();
    assert!(because.ends_with("kvm does not exist"), "{because}");

    fs::write(&fake.host.device, "").unwrap();
    write_program(&fake.dir.path().join("emulator"), "#!/bin/sh\nexit 85\n");
    containers.reconsider_on(&fake.host).await;
    assert_eq!(containers.emulated_because(), None);
    let chosen = containers.accelerator().unwrap();
    assert_eq!(chosen.accelerator, Accelerator::Kvm);
    fs::remove_file(&fake.host.device).unwrap();
    containers.reconsider_on(&fake.host).await;
    assert_eq!(containers.accelerator(), Some(chosen));
}

#[tokio::test]
async fn emulation_that_was_requested_is_not_reconsidered() {
    let node = Node::new().await;
    let requested = Choice::tcg("the configuration says tcg".to_owned());
    *node.containers.accelerator.lock().unwrap() = Some(requested.clone());
    let fake = FakeEmulator::doing("exit 85");
    node.containers.reconsider_on(&fake.host).await;
    assert_eq!(node.containers.accelerator(), Some(requested));
    assert_eq!((node.containers.emulated_because(), fake.runs()), (None, 0));
}

#[tokio::test]
async fn another_setting_counts_from_then_on_and_kvm_only_where_it_works() {
    let node = Node::new().await;
    let containers = &node.containers;
    let fake = FakeEmulator::doing("exit 1");
    let host = &fake.host;
    let refused = containers.try_on(Setting::Kvm, host).await.unwrap_err();
    assert!(
        refused.starts_with("kvm does not work on this node: "),
        "{refused}"
    );
    let runs = fake.runs();
    containers.try_on(Setting::Kvm, host).await.unwrap_err();
    assert_eq!(fake.runs(), runs, "the answer counts for a while");

    containers.switch_on(Setting::Auto, host).await;
    let accelerator = || containers.accelerator().map(|choice| choice.accelerator);
    assert_eq!(accelerator(), Some(Accelerator::Tcg));
    assert!(containers.emulated_because().is_some());
    containers.switch_on(Setting::Tcg, host).await;
    assert_eq!(accelerator(), Some(Accelerator::Tcg));
    assert_eq!(containers.emulated_because(), None, "it was requested");
    // Kept from before a reboot, say.
    containers.switch_on(Setting::Kvm, host).await;
    assert_eq!(accelerator(), None);
    assert!(containers.obstacle().await.is_some());

    let fake = FakeEmulator::doing("exit 85");
    containers.switch_on(Setting::Kvm, &fake.host).await;
    assert_eq!(accelerator(), Some(Accelerator::Kvm));
}
