//! Descriptions and figures, right and damaged.
//!
//! Invariant: what is read is what was written.
//! Failure: proptest shows the smallest text that breaks it.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const MIB: u64 = 1 << 20;

const LIVE: &str = "<domain type='qemu' id='1'><maxMemory slots='1' unit='KiB'>393216\
    </maxMemory><memory unit='KiB'>393216</memory><currentMemory unit='KiB'>196608</currentMemory>\
    <vcpu placement='static' current='2'>4</vcpu>\
    <vcpus><vcpu id='0'/><vcpu id='1'/></vcpus><cpu mode='maximum'><numa>\
    <cell id='0' cpus='0-3' memory='131072' unit='KiB'/></numa></cpu><devices>\
    <memory model='virtio-mem'><target><size unit='KiB'>262144</size><node>0</node>\
    <block unit='KiB'>2048</block><requested unit='KiB'>65536</requested>\
    <current unit='KiB'>0</current></target><alias name='virtiomem0'/></memory></devices>\
    </domain>";

#[test]
fn a_layout_is_read_with_and_without_room() {
    let layout = Layout::read(LIVE).unwrap();
    let expected = Layout {
        vcpus: 2,
        max_vcpus: Some(4),
        base: 128 * MIB,
        spare: Some((256 * MIB, 64 * MIB)),
        current: Some(192 * MIB),
    };
    assert_eq!(layout, expected);
    assert_eq!(Layout::read(&format!("{LIVE}\0")), Some(expected));
    let fixed = "<domain><memory unit='MiB'>64</memory><vcpu>3</vcpu><cpu mode='maximum'/>\
        <devices/></domain>";
    let expected = Layout {
        vcpus: 3,
        max_vcpus: None,
        base: 64 * MIB,
        spare: None,
        current: None,
    };
    assert_eq!(Layout::read(fixed), Some(expected));
    assert_eq!(Layout::read("<domain/>"), None);
}

#[test]
fn another_request_changes_nothing_else() {
    let device = requesting(LIVE, 96 * MIB).unwrap();
    let expected = "<memory model='virtio-mem'><target><size unit='KiB'>262144</size>\
        <node>0</node><block unit='KiB'>2048</block><requested unit='KiB'>98304</requested>\
        <current unit='KiB'>0</current></target><alias name='virtiomem0'/></memory>";
    assert_eq!(device, expected);
    assert_eq!(requesting("<domain><devices/></domain>", 0), None);
}

#[test]
fn the_emulator_counts_what_is_plugged() {
    let cpus = json!([{"type": "x"}, {"qom-path": "/machine/peripheral/vcpu1"}, {"qom-path": ""}]);
    let memory = json!({"base-memory": 7, "plugged-memory": 3});
    let data = json!({"max-size": 9, "requested-size": 5, "size": 3, "id": "virtiomem0"});
    let devices = json!([{"type": "dimm"}, {"type": "virtio-mem", "data": data}]);
    let spare = Spare {
        most: 9,
        requested: 5,
        plugged: 3,
    };
    let size = from_emulator(&cpus, &memory, &devices).unwrap();
    assert_eq!((size.vcpus, size.base, size.spare), (2, 7, Some(spare)));
    let fixed = from_emulator(&cpus, &memory, &json!([])).unwrap();
    assert_eq!(fixed.spare, None);
    let odd = json!([{"type": "virtio-mem"}]);
    assert_eq!(from_emulator(&cpus, &memory, &odd), None);
}

proptest! {
    #[test]
    fn a_layout_is_read_as_it_was_written_whatever_is_around_it(
        (vcpus, most) in (1_u16..300, prop::option::of(1_u16..300)),
        base in prop_oneof![1_u64..1 << 30, any::<u64>()],
        spare in prop::option::of((0_u64..1 << 30, 0_u64..1 << 30)),
        unit in prop::sample::select(vec!["KiB", "MiB"]),
        noise in "[a-z ]{0,12}",
    ) {
        let scale = if unit == "MiB" { MIB } else { 1 << 10 };
        let listed = most.map_or(String::new(), |_| "<vcpus/>".to_owned());
        let (numa, devices) = spare.map_or_else(Default::default, |(size, requested)| (
            format!("<numa><cell id='0' memory='{base}' unit='{unit}'/></numa>"),
            format!("<memory model='virtio-mem'><target><size unit='{unit}'>{size}</size>\
                <requested unit='{unit}'>{requested}</requested></target></memory>"),
        ));
        let number = most.unwrap_or(vcpus);
        let xml = format!("<domain><description>{noise}</description>\
            <memory unit='{unit}'>{base}</memory><vcpu current='{vcpus}'>{number}</vcpu>{listed}\
            <cpu mode='{noise}'>{numa}</cpu><devices><disk a='{noise}'/>{devices}</devices></domain>");
        let layout = Layout::read(&xml).unwrap();
        prop_assert_eq!((layout.vcpus, layout.max_vcpus), (vcpus, most));
        prop_assert_eq!(layout.base, base.saturating_mul(scale));
        prop_assert_eq!(layout.spare, spare.map(|(size, requested)| (size * scale, requested * scale)));
        if spare.is_some() {
            let other = requesting(&xml, 7 << 10).unwrap();
            prop_assert!(other.contains("<requested unit='KiB'>7</requested>"), "{}", other);
        }
    }

    #[test]
    fn a_damaged_description_is_read_without_a_panic(
        at in any::<prop::sample::Index>(),
        insert in "[<>/&'=a-z0-9]{0,6}",
        cut: bool,
    ) {
        let at = at.index(LIVE.len());
        let rest = if cut { "" } else { &LIVE[at..] };
        let xml = format!("{}{insert}{rest}", &LIVE[..at]);
        if let Some(layout) = Layout::read(&xml) {
            prop_assert!(!cut || at > LIVE.len() - 10, "{:?}", layout);
        }
        let _ = requesting(&xml, 1 << 20);
        let _ = crate::read::console_file(&xml);
        let _ = crate::read::mark(&xml);
    }

    #[test]
    fn the_emulators_figures_are_its_own_or_none(
        number in prop_oneof![any::<u64>().prop_map(Value::from), any::<i64>().prop_map(Value::from), "[a-z]{0,3}".prop_map(Value::from)],
        slots in 0_usize..6,
    ) {
        let cpus = Value::Array(vec![json!({"qom-path": "/x"}); slots]);
        let data = json!({"max-size": number, "requested-size": 1, "size": 0});
        let devices = json!([{"type": "virtio-mem", "data": data}]);
        let size = from_emulator(&cpus, &json!({"base-memory": number}), &devices);
        let expected = number.as_u64().map(|number| (slots, number, number));
        let found = size.map(|size| (usize::from(size.vcpus), size.base, size.spare.unwrap().most));
        prop_assert_eq!(found, expected);
    }
}
