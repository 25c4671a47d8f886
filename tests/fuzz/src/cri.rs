//! Requests for a container, from their bytes to the definition of a domain.
//!
//! Invariant: a request is refused in one bounded line with the code for a mistake of the client,
//! or the statuses repeat what it gave, and the domain's definition is XML that has the requested
//! machine in it, with every text in its place.
//! Failure: a panic.

use std::collections::BTreeMap;

use cri_proto::v1;
use daemon::fuzzing::{Accelerator, Created, create};
use prost::Message;
use quick_xml::XmlVersion;
use quick_xml::events::Event;
use tonic::{Code, Status};

/// Longest line of an error.
const LONGEST_ERROR: usize = 8 << 10;

/// The bytes of a `CreateContainerRequest`, whose sandbox is requested, too; or annotations in
/// lines, for a machine of an ordinary request.
///
/// # Panics
///
/// When the answer is neither a refusal in words nor a whole machine.
pub fn cri_requests(input: &[u8]) {
    let Ok(request) = v1::CreateContainerRequest::decode(input) else {
        return annotated(input);
    };
    let sandbox = request.sandbox_config;
    let container = request.config;
    // Processes have system call filters, which take long to make.
    let has_command = container.as_ref().is_some_and(|c| !c.command.is_empty());
    let handlers = ["", "vmlet-process"];
    for handler in &handlers[..1 + usize::from(has_command)] {
        let run = v1::RunPodSandboxRequest {
            config: sandbox.clone(),
            runtime_handler: (*handler).to_owned(),
        };
        made(&run, container.as_ref());
    }
}

/// Lines such as `vmlet.dev/memory=64Mi`.
fn annotated(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let pair = |(key, value): (&str, &str)| (key.to_owned(), value.replace("\\n", "\n"));
    let annotations: BTreeMap<_, _> = pairs.map(pair).collect();
    let metadata = v1::PodSandboxMetadata {
        name: "web".to_owned(),
        uid: "u".to_owned(),
        namespace: "default".to_owned(),
        attempt: 0,
    };
    let run = v1::RunPodSandboxRequest {
        config: Some(v1::PodSandboxConfig {
            metadata: Some(metadata),
            annotations,
            ..v1::PodSandboxConfig::default()
        }),
        runtime_handler: String::new(),
    };
    let image = v1::ImageSpec {
        image: "disk".to_owned(),
        ..v1::ImageSpec::default()
    };
    let container = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: "vm".to_owned(),
            attempt: 0,
        }),
        image: Some(image),
        ..v1::ContainerConfig::default()
    };
    made(&run, Some(&container));
}

fn made(run: &v1::RunPodSandboxRequest, container: Option<&v1::ContainerConfig>) {
    for accelerator in [Accelerator::Tcg, Accelerator::Kvm] {
        match create(run.clone(), container.cloned(), accelerator) {
            Ok(created) => {
                echoes(run, container, &created);
                describes(&created, accelerator);
            }
            Err(status) => is_refusal(&status),
        }
    }
}

fn is_refusal(status: &Status) {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let text = status.message();
    assert!(
        !text.is_empty() && text.len() <= LONGEST_ERROR,
        "{} bytes",
        text.len()
    );
    assert!(!text.contains(char::is_control), "{text:?}");
}

/// What kubelet compares with what it gave.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
fn echoes(run: &v1::RunPodSandboxRequest, container: Option<&v1::ContainerConfig>, made: &Created) {
    let config = run.config.as_ref().expect("a sandbox");
    assert_eq!(made.sandbox.metadata, config.metadata);
    assert_eq!(made.sandbox.labels, config.labels);
    assert_eq!(made.sandbox.annotations, config.annotations);
    assert_eq!(made.sandbox.runtime_handler, run.runtime_handler);
    let config = container.expect("a container");
    assert_eq!(made.container.metadata, config.metadata);
    assert_eq!(made.container.labels, config.labels);
    assert_eq!(made.container.annotations, config.annotations);
    assert_eq!(made.container.mounts.len(), config.mounts.len());
    for (echo, given) in made.container.mounts.iter().zip(&config.mounts) {
        assert_eq!(echo.container_path, given.container_path);
        assert_eq!(echo.host_path, given.host_path);
        assert_eq!(
            (echo.readonly, echo.propagation),
            (given.readonly, given.propagation)
        );
    }
    let log = made.container.log_path.as_str();
    assert!(
        log.starts_with('/') && !log.split('/').any(|part| part == ".."),
        "{log}"
    );
}

/// The definition of the domain, read by another reader than libvirt's.
fn describes(made: &Created, accelerator: Accelerator) {
    let found = elements(&made.domain);
    let one = |path: &str| {
        let mut of_path = found.iter().filter(|(p, ..)| p == path);
        let first = of_path.next();
        let more = of_path.next();
        assert!(
            first.is_some() && more.is_none(),
            "{path} in {}",
            made.domain
        );
        first.map(|(_, attributes, text)| (attributes, text.trim()))
    };
    let attribute = |path: &str, name: &str| {
        one(path).and_then(|(attributes, _)| attributes.get(name).cloned())
    };
    let text = |path: &str| one(path).map(|(_, text)| text.to_owned());
    let kind = if accelerator == Accelerator::Kvm {
        "kvm"
    } else {
        "qemu"
    };
    assert_eq!(attribute("domain", "type").as_deref(), Some(kind));
    assert_eq!(
        attribute("domain/metadata/vmlet:vm", "container").as_deref(),
        Some(made.container.id.as_str())
    );
    let name = text("domain/name").unwrap_or_default();
    assert!(
        name.starts_with("vmlet-") && !name.contains(['/', '.']),
        "{name}"
    );
    assert_eq!(
        attribute("domain/devices/disk/source", "file"),
        Some(format!(
            "/var/lib/vmlet/pods/{}/root.qcow2",
            &made.sandbox.id[..20]
        ))
    );
    assert_eq!(
        text("domain/devices/emulator").as_deref(),
        Some("/usr/libexec/vmlet/vmwrapper")
    );
    let machine = &made.machine;
    let layout = libvirt::Layout::read(&made.domain);
    let Some(layout) = layout else {
        return assert_eq!(made.domain, "a definition with a layout");
    };
    let most = machine.max_vcpus.unwrap_or(machine.vcpus).get();
    assert!((1..=u16::from(most)).contains(&layout.vcpus), "{layout:?}");
    assert_eq!(
        layout.max_vcpus,
        machine.max_vcpus.map(|most| u16::from(most.get()))
    );
    assert_eq!(layout.base, machine.memory.bytes());
    if let Some((most, requested)) = layout.spare {
        assert!(requested <= most, "{layout:?}");
        let room = machine.max_memory.unwrap_or(machine.memory).bytes() - layout.base;
        assert!(requested <= room && most >= room, "{layout:?} for {room}");
    }
}

/// Path, attributes and text of each element.
type Element = (String, BTreeMap<String, String>, String);

/// All elements of a document, which ends where its first element does.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
fn elements(xml: &str) -> Vec<Element> {
    let mut reader = quick_xml::Reader::from_str(xml);
    reader.config_mut().check_end_names = true;
    reader.config_mut().expand_empty_elements = true;
    let mut found: Vec<Element> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    loop {
        match reader.read_event().expect("XML") {
            Event::Start(start) => {
                assert!(found.is_empty() || !open.is_empty(), "a second document");
                let name = start.name().as_ref().to_owned();
                let path = match open.last().and_then(|at| found.get(*at)) {
                    Some((parent, ..)) => format!("{parent}/{name}"),
                    None => name,
                };
                let attributes = start.attributes().map(|attribute| {
                    let attribute = attribute.expect("an attribute");
                    let value = attribute.normalized_value(XmlVersion::Implicit1_0);
                    let key = attribute.key.as_ref().to_owned();
                    (key, value.expect("a value").into_owned())
                });
                let attributes = attributes.collect();
                open.push(found.len());
                found.push((path, attributes, String::new()));
            }
            Event::End(_) => {
                open.pop().expect("an open element");
            }
            Event::Text(text) => {
                if let Some((.., all)) = open.last().and_then(|at| found.get_mut(*at)) {
                    all.push_str(&text);
                }
            }
            Event::GeneralRef(_) => {}
            Event::Eof => break,
            other => assert_eq!(format!("{other:?}"), "an element or text"),
        }
    }
    assert!(open.is_empty());
    found
}
