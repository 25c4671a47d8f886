//! What is kept of reports that guests send.
//!
//! Invariant: memory is computed from lengths and capacities, not measured.
//! Failure: the bytes that a report takes.

use prost::Message;

use super::*;
use crate::MAX_FRAME_OF_GUEST;

fn of_texts(texts: &[&String]) -> usize {
    texts.iter().map(|text| text.capacity()).sum()
}

/// What a report takes beside its own fields.
fn memory(facts: &Facts) -> usize {
    let names = [
        &facts.host_name,
        &facts.os_id,
        &facts.os_name,
        &facts.os_version,
        &facts.kernel,
    ];
    let file_systems = facts.file_systems.iter();
    let file_systems = file_systems.map(|fs| of_texts(&[&fs.mount_point, &fs.device, &fs.kind]));
    let interfaces = facts.interfaces.iter().map(|nic| {
        let addresses = nic.addresses.iter().map(String::capacity).sum::<usize>();
        let list = nic.addresses.capacity() * size_of::<String>();
        of_texts(&[&nic.name, &nic.mac]) + addresses + list
    });
    of_texts(&names)
        + facts.file_systems.capacity() * size_of::<FileSystem>()
        + file_systems.sum::<usize>()
        + facts.interfaces.capacity() * size_of::<Interface>()
        + interfaces.sum::<usize>()
        + facts.published.len()
        + facts.not_mounted.len()
}

/// The report that these bytes are, as it came and within its bounds.
fn received(facts: &Facts) -> [Facts; 2] {
    let bytes = facts.encode_to_vec();
    assert!(bytes.len() <= MAX_FRAME_OF_GUEST, "{}", bytes.len());
    let came = Facts::decode(Bytes::from(bytes)).unwrap();
    [came.clone(), came.bounded()]
}

#[test]
fn a_report_of_many_empty_parts_takes_no_more_memory_than_a_usual_one() {
    let half = MAX_FRAME_OF_GUEST / 2 - 8;
    let file_systems = vec![FileSystem::default(); half];
    let interfaces = vec![Interface::default(); half];
    let addresses = vec![String::new(); half];
    let nic = Interface {
        addresses,
        ..Interface::default()
    };
    let reports = [
        Facts {
            file_systems,
            ..Facts::default()
        },
        Facts {
            interfaces,
            ..Facts::default()
        },
        Facts {
            interfaces: vec![nic],
            ..Facts::default()
        },
    ];
    for report in reports {
        let [came, kept] = received(&report);
        assert!(memory(&came) > 700_000, "{}", memory(&came));
        assert!(memory(&kept) < 4000, "{}", memory(&kept));
    }
}

#[test]
fn long_texts_are_cut_and_no_bytes_of_the_frame_are_kept() {
    let facts = Facts {
        host_name: "ä".repeat(8000),
        kernel: "x".repeat(8000),
        published: vec![b'y'; 20_000].into(),
        not_mounted: vec![b'/'; 10].into(),
        uptime: 7,
        ..Facts::default()
    };
    let [came, kept] = received(&facts);
    assert_eq!(came, facts);
    assert_eq!(kept.host_name, "ä".repeat(REPORT_TEXT / 2));
    assert_eq!((kept.kernel.len(), kept.uptime), (REPORT_TEXT, 7));
    assert_eq!(
        (kept.published.len(), kept.not_mounted.len()),
        (PUBLISHED, 10)
    );
    assert!(memory(&kept) <= 2 * REPORT_TEXT + PUBLISHED + 10);
}

#[test]
fn a_report_within_its_bounds_stays_as_it_is() {
    let nic = Interface {
        name: "eth0".to_owned(),
        mac: "52:54:00:12:34:56".to_owned(),
        addresses: vec!["10.1.0.5/24".to_owned(); INTERFACES],
    };
    let file_system = FileSystem {
        mount_point: "/".to_owned(),
        device: "/dev/vda1".to_owned(),
        kind: "ext4".to_owned(),
        size: 1,
        used: 2,
        inodes: 3,
        inodes_used: 4,
    };
    let facts = Facts {
        os_id: "debian".to_owned(),
        file_systems: vec![file_system; FILE_SYSTEMS],
        interfaces: vec![nic; INTERFACES],
        published: "ready=yes\n".into(),
        memory: 5,
        ..Facts::default()
    };
    assert_eq!(facts.clone().bounded(), facts);
}
