use super::*;
use crate::content::Content;

fn change(path: &str, reader: Reader) -> Change {
    Change {
        path: path.into(),
        reader,
        from: Some(Content::new("a\nb\nc\n", 0o644)),
        to: Some(Content::new("a\nB\nc\n", 0o644)),
        edit: None,
    }
}

fn facts() -> Facts {
    Facts {
        service: "kubelet.service".into(),
        ..Facts::default()
    }
}

fn shown(steps: &[Step]) -> Vec<String> {
    steps.iter().map(ToString::to_string).collect()
}

fn both() -> Vec<Change> {
    vec![
        change("/var/lib/kubelet/kubeadm-flags.env", Reader::Kubelet),
        change("/etc/systemd/system/vmlet-criproxy.service", Reader::Proxy),
    ]
}

#[test]
fn the_proxy_answers_before_kubelet_is_changed() {
    let steps = inward(both(), &facts());
    let expected = [
        "edit /etc/systemd/system/vmlet-criproxy.service",
        "systemctl daemon-reload",
        "systemctl enable vmlet-criproxy.service",
        "systemctl start vmlet-criproxy.service",
        "wait until the proxy answers for kubelet's runtime",
        "wait until kubelet is healthy",
        "edit /var/lib/kubelet/kubeadm-flags.env",
        "systemctl restart kubelet.service",
        "wait until kubelet is healthy and connected to the proxy",
    ];
    assert_eq!(shown(&steps), expected);
}

#[test]
fn kubelet_is_off_the_proxy_before_that_stops() {
    let facts = Facts {
        is_active: true,
        is_enabled: true,
        ..facts()
    };
    let steps = outward(both(), &facts);
    let expected = [
        "edit /var/lib/kubelet/kubeadm-flags.env",
        "systemctl restart kubelet.service",
        "wait until kubelet is healthy",
        "wait until nothing is connected to the proxy",
        "systemctl stop vmlet-criproxy.service",
        "systemctl disable vmlet-criproxy.service",
        "edit /etc/systemd/system/vmlet-criproxy.service",
        "systemctl daemon-reload",
        "remove the folders of the installation and the undo journal",
    ];
    assert_eq!(shown(&steps), expected);
}

#[test]
fn an_upgrade_leaves_kubelet_alone_and_a_second_installation_all() {
    let facts = Facts {
        is_active: true,
        is_enabled: true,
        is_used: true,
        ..facts()
    };
    let program = change("/opt/vmlet/bin/vmlet-criproxy", Reader::Proxy);
    let expected = [
        "edit /opt/vmlet/bin/vmlet-criproxy",
        "systemctl restart vmlet-criproxy.service",
        "wait until the proxy answers for kubelet's runtime",
        "wait until kubelet is healthy and connected to the proxy",
    ];
    assert_eq!(shown(&inward(vec![program], &facts)), expected);
    assert!(inward(Vec::new(), &facts).is_empty());
}

#[test]
fn after_a_crash_all_services_see_the_files() {
    let facts = Facts {
        is_active: true,
        is_enabled: true,
        is_unfinished: true,
        is_kubelet_touched: true,
        ..facts()
    };
    let expected = [
        "systemctl daemon-reload",
        "systemctl restart vmlet-criproxy.service",
        "wait until the proxy answers for kubelet's runtime",
        "systemctl daemon-reload",
        "systemctl restart kubelet.service",
        "wait until kubelet is healthy and connected to the proxy",
    ];
    assert_eq!(shown(&inward(Vec::new(), &facts)), expected);
}

#[test]
fn a_text_is_shown_by_its_difference() {
    let step = Step::File(change("/a", Reader::Kubelet));
    assert_eq!(step.in_full(), "edit /a\n    - b\n    + B\n");
    let mut change = change("/a", Reader::Proxy);
    change.from = None;
    let step = Step::File(change.clone());
    assert_eq!(
        step.in_full(),
        "write /a\n    mode 0644\n    + a\n    + B\n    + c\n"
    );
    change.to = Some(Content::new([0, 159], 0o755));
    let text = Step::File(change.clone()).in_full();
    assert!(
        text.starts_with("copy the program to /a\n    2 bytes, mode 0755, sha256 "),
        "{text}"
    );
    change.to = None;
    assert_eq!(Step::File(change).in_full(), "remove /a\n");
}
