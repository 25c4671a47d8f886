//! How annotations, resources and defaults make a machine.
//!
//! Invariant: nonsense never becomes a machine.
//! Failure: every refusal names the setting and its value.

use rstest::rstest;

use super::*;

const DEFAULTS: Defaults = Defaults {
    vcpus: Vcpus::ONE,
    memory: Mib::new(1024),
    cpu_model: CpuModel::Default,
};

fn machine(pairs: &[(&str, &str)], resources: PodResources) -> Result<Machine, AnnotationError> {
    let map = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    Machine::from_pod(&map, resources, DEFAULTS)
}

#[test]
fn a_pod_without_settings_gets_the_defaults() {
    let machine = machine(&[], PodResources::default()).unwrap();
    assert_eq!(
        (machine.vcpus, machine.memory),
        (Vcpus::ONE, Mib::new(1024))
    );
    assert_eq!((machine.root_size, machine.system_uuid), (None, None));
}

#[rstest]
#[case(50_000, 100_000, 1)]
#[case(150_000, 100_000, 2)]
#[case(400_000, 100_000, 4)]
#[case(-1, 100_000, 1)]
#[case(100_000, 0, 1)]
#[case(i64::MAX, 1, 255)]
fn cpu_limits_round_up_to_whole_cpus(#[case] quota: i64, #[case] period: i64, #[case] want: u8) {
    let resources = PodResources {
        cpu_quota: quota,
        cpu_period: period,
        memory_limit: 0,
    };
    assert_eq!(machine(&[], resources).unwrap().vcpus.get(), want);
}

#[test]
fn annotations_win_over_resources() {
    let resources = PodResources {
        cpu_quota: 400_000,
        cpu_period: 100_000,
        memory_limit: 256 << 20,
    };
    let pairs = [("vmlet.dev/vcpu-count", "2"), ("vmlet.dev/memory", "512Mi")];
    let machine = machine(&pairs, resources).unwrap();
    assert_eq!((machine.vcpus.get(), machine.memory.get()), (2, 512));
}

#[test]
fn a_memory_limit_is_never_exceeded() {
    let resources = PodResources {
        memory_limit: (128 << 20) + 12345,
        ..PodResources::default()
    };
    assert_eq!(machine(&[], resources).unwrap().memory.get(), 128);
}

#[rstest]
#[case("33554431", None)]
#[case("32Mi", Some(33_554_432))]
#[case("16Ti", Some(17_592_186_044_416))]
#[case("16777217Mi", None)]
fn memory_has_a_least_and_a_greatest_size(#[case] value: &str, #[case] want: Option<u64>) {
    let machine = machine(&[("vmlet.dev/memory", value)], PodResources::default());
    assert_eq!(machine.ok().map(|m| m.memory.bytes()), want);
}

#[rstest]
#[case("1", Some(1))]
#[case("9223372036854775807", Some(9_223_372_036_854_775_807))]
#[case("9223372036854775808", None)]
fn a_root_disk_has_a_greatest_size(#[case] value: &str, #[case] want: Option<u64>) {
    let machine = machine(
        &[("vmlet.dev/root-volume-size", value)],
        PodResources::default(),
    );
    assert_eq!(machine.ok().and_then(|m| m.root_size), want);
}

#[rstest]
#[case("", CpuModel::Default)]
#[case("host-model", CpuModel::HostModel)]
fn the_cpu_model_is_the_hosts_or_the_usual_one(#[case] value: &str, #[case] want: CpuModel) {
    let machine = machine(&[("VirtletCPUModel", value)], PodResources::default());
    assert_eq!(machine.unwrap().cpu_model, want);
}

#[test]
fn a_pod_without_a_cpu_model_gets_the_default_and_an_empty_one_replaces_it() {
    let defaults = Defaults {
        cpu_model: CpuModel::HostModel,
        ..DEFAULTS
    };
    let machine = |annotations: &[(&str, &str)]| {
        let texts = annotations.iter();
        let texts = texts.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Machine::from_pod(&texts.collect(), PodResources::default(), defaults).unwrap()
    };
    assert_eq!(machine(&[]).cpu_model, CpuModel::HostModel);
    let empty = machine(&[("vmlet.dev/cpu-model", "")]);
    assert_eq!(empty.cpu_model, CpuModel::Default);
}

#[rstest]
#[case(&[], GuestAgent::Auto)]
#[case(&[("vmlet.dev/guest-agent", "auto")], GuestAgent::Auto)]
#[case(&[("vmlet.dev/guest-agent", "image")], GuestAgent::Image)]
#[case(&[("vmlet.dev/guest-agent", "off")], GuestAgent::Off)]
fn the_guest_agent_is_installed_unless_the_pod_refuses_it(
    #[case] pairs: &[(&str, &str)],
    #[case] want: GuestAgent,
) {
    let machine = machine(pairs, PodResources::default());
    assert_eq!(machine.unwrap().guest_agent, want);
}

#[test]
fn a_machine_grows_to_its_maxima_and_has_none_unless_the_pod_gives_them() {
    let fixed = machine(&[], PodResources::default()).unwrap();
    assert_eq!((fixed.max_vcpus, fixed.max_memory), (None, None));
    let pairs = [
        ("vmlet.dev/vcpu-count", "2"),
        ("vmlet.dev/max-vcpus", "255"),
        ("vmlet.dev/memory", "512Mi"),
        ("vmlet.dev/max-memory", "512Mi"),
    ];
    let grows = machine(&pairs, PodResources::default()).unwrap();
    assert_eq!(grows.max_vcpus.map(Vcpus::get), Some(255));
    assert_eq!(grows.max_memory, Some(Mib::new(512)));
}

#[rstest]
#[case("vmlet.dev/max-vcpus", "1", "the machine begins with 2 virtual CPUs")]
#[case("vmlet.dev/max-memory", "255Mi", "the machine begins with 256 MiB")]
fn a_maximum_below_the_beginning_is_refused(
    #[case] name: &str,
    #[case] value: &str,
    #[case] words: &str,
) {
    let resources = PodResources {
        cpu_quota: 150_000,
        cpu_period: 100_000,
        memory_limit: 256 << 20,
    };
    let text = machine(&[(name, value)], resources).unwrap_err();
    let text = text.to_string();
    assert!(text.contains(name) && text.contains(words), "{text}");
}

#[test]
fn a_uuid_of_ours_wins_over_the_predecessors() {
    let uuid = |digit: &str| format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1{digit}");
    let ours = uuid("a");
    let other = uuid("b");
    let pairs = [
        ("vmlet.dev/bios-uuid", ours.as_str()),
        ("VirtletSystemUUID", &other),
    ];
    let read = |pairs: &[(&str, &str)]| machine(pairs, PodResources::default()).unwrap();
    assert_eq!(read(&pairs).system_uuid.unwrap().to_string(), ours);
    assert_eq!(read(&pairs[1..]).system_uuid.unwrap().to_string(), other);
}

#[rstest]
#[case("vmlet.dev/vcpu-count", "0")]
#[case("vmlet.dev/vcpu-count", "-1")]
#[case("VirtletVCPUCount", "256")]
#[case("vmlet.dev/vcpu-count", "two")]
#[case("vmlet.dev/memory", "12")]
#[case("vmlet.dev/memory", "1Zi")]
#[case("vmlet.dev/memory", "17Ti")]
#[case("vmlet.dev/max-vcpus", "256")]
#[case("vmlet.dev/max-vcpus", "many")]
#[case("vmlet.dev/max-memory", "17Ti")]
#[case("VirtletCPUModel", "486")]
#[case("VirtletRootVolumeSize", "0")]
#[case("vmlet.dev/root-volume-size", "9Ei")]
#[case("VirtletSystemUUID", "not-a-uuid")]
#[case("vmlet.dev/guest-agent", "none")]
fn nonsense_is_refused_by_name_and_value(#[case] name: &str, #[case] value: &str) {
    let text = machine(&[(name, value)], PodResources::default())
        .unwrap_err()
        .to_string();
    assert!(text.contains(name) && text.contains(value), "{text}");
}

#[test]
fn a_limit_too_small_for_any_machine_is_refused() {
    for (memory_limit, written) in [(15 << 20, "15Mi"), (512 << 10, "512Ki"), (1000, "1000")] {
        let resources = PodResources {
            memory_limit,
            ..PodResources::default()
        };
        let text = machine(&[], resources).unwrap_err().to_string();
        let words = format!("resources.limits.memory = \"{written}\": ");
        assert!(
            text.starts_with(&words) && text.contains("32 MiB"),
            "{text}"
        );
    }
}
