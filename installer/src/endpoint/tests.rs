use rstest::rstest;

use super::*;

#[rstest]
#[case::kubeadm(
    "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock --v=2\"\n",
    "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/vmlet/criproxy.sock --v=2\"\n",
    "unix:///run/containerd/containerd.sock"
)]
#[case::last_in_quotes(
    "A=\"--v=2 --container-runtime-endpoint=unix:///run/crio/crio.sock\"\n",
    "A=\"--v=2 --container-runtime-endpoint=unix:///run/vmlet/criproxy.sock\"\n",
    "unix:///run/crio/crio.sock"
)]
#[case::line_of_its_own(
    "--v=2\n--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n--x\n",
    "--v=2\n--container-runtime-endpoint=unix:///run/vmlet/criproxy.sock\n--x\n",
    "${SNAP_COMMON}/run/containerd.sock"
)]
#[case::blank(
    "A=--container-runtime-endpoint /run/a.sock",
    "A=--container-runtime-endpoint=unix:///run/vmlet/criproxy.sock",
    "/run/a.sock"
)]
#[case::comment(
    "# --container-runtime-endpoint=unix:///a\n--container-runtime-endpoint=unix:///b\n",
    "# --container-runtime-endpoint=unix:///a\n--container-runtime-endpoint=unix:///run/vmlet/criproxy.sock\n",
    "unix:///b"
)]
fn a_flag_is_edited_and_taken_back(#[case] text: &str, #[case] new: &str, #[case] earlier: &str) {
    let edited = flag(text).unwrap().unwrap();
    assert_eq!(edited.text, new);
    assert_eq!(edited.earlier.as_deref(), Some(earlier));
    assert_eq!(revert(new, &edited.edit).as_deref(), Some(text));
    let again = flag(new).unwrap().unwrap();
    assert_eq!(
        (again.text.as_str(), again.earlier.as_deref()),
        (new, Some(ENDPOINT))
    );
}

#[rstest]
#[case::plain("containerRuntimeEndpoint: unix:///run/a.sock", "unix:///run/a.sock")]
#[case::quoted(
    "containerRuntimeEndpoint: \"unix:///run/a.sock\"",
    "unix:///run/a.sock"
)]
#[case::remark(
    "containerRuntimeEndpoint: unix:///run/a.sock # ours",
    "unix:///run/a.sock"
)]
fn a_field_is_edited_and_taken_back(#[case] line: &str, #[case] earlier: &str) {
    let text = format!("apiVersion: v1\n{line}\nlogging:\n  containerRuntimeEndpoint: no\n");
    let edited = field(&text).unwrap().unwrap();
    let new = text.replace(
        line,
        "containerRuntimeEndpoint: unix:///run/vmlet/criproxy.sock",
    );
    assert_eq!(edited.text, new);
    assert_eq!(edited.earlier.as_deref(), Some(earlier));
    assert_eq!(revert(&new, &edited.edit), Some(text));
}

#[rstest]
#[case::twice("--container-runtime-endpoint=a --container-runtime-endpoint=b")]
#[case::no_value("--container-runtime-endpoint")]
fn a_flag_that_cannot_be_understood_is_refused(#[case] text: &str) {
    flag(text).unwrap_err();
}

#[test]
fn texts_without_an_endpoint_have_none() {
    assert_eq!(flag("A=\"--v=2\"\n").unwrap(), None);
    assert_eq!(field("kind: KubeletConfiguration\n").unwrap(), None);
    field("{\"kind\": \"KubeletConfiguration\"}").unwrap_err();
}

#[rstest]
#[case::ended("kind: KubeletConfiguration\n")]
#[case::open("kind: KubeletConfiguration")]
#[case::empty("")]
fn an_added_field_is_the_last_line(#[case] text: &str) {
    let edited = with_field(text);
    assert!(
        edited
            .text
            .ends_with("\ncontainerRuntimeEndpoint: unix:///run/vmlet/criproxy.sock\n")
            || text.is_empty()
    );
    assert_eq!(
        field(&edited.text).unwrap().unwrap().earlier.as_deref(),
        Some(ENDPOINT)
    );
    assert_eq!(revert(&edited.text, &edited.edit).as_deref(), Some(text));
}

#[rstest]
#[case::none(
    "/usr/local/bin/k0s worker --token-file=/t",
    "/usr/local/bin/k0s worker --token-file=/t --kubelet-extra-args=--container-runtime-endpoint=unix:///run/vmlet/criproxy.sock"
)]
#[case::escaped(
    "k0s worker --kubelet-extra-args=--a\\x20--b --x",
    "k0s worker --kubelet-extra-args=--a\\x20--b\\x20--container-runtime-endpoint=unix:///run/vmlet/criproxy.sock --x"
)]
#[case::quoted(
    "k0s worker --kubelet-extra-args=\"--a --b\" --x",
    "k0s worker --kubelet-extra-args=\"--a --b --container-runtime-endpoint=unix:///run/vmlet/criproxy.sock\" --x"
)]
#[case::apart(
    "k0s worker --kubelet-extra-args '--a'",
    "k0s worker --kubelet-extra-args '--a --container-runtime-endpoint=unix:///run/vmlet/criproxy.sock'"
)]
fn k0s_gives_kubelet_one_more_argument(#[case] command: &str, #[case] new: &str) {
    let edited = k0s_command(command).unwrap();
    assert_eq!(edited.text, new);
    assert_eq!(revert(new, &edited.edit).as_deref(), Some(command));
    assert_eq!(k0s_command(new).unwrap().text, new);
}

#[test]
fn a_runtime_of_the_administrator_of_k0s_is_refused() {
    k0s_command("k0s worker --cri-socket=remote:unix:///run/crio/crio.sock").unwrap_err();
}

#[test]
fn an_edit_that_is_there_twice_or_not_at_all_is_left() {
    let edit = Edit {
        ours: "b".into(),
        theirs: "a".into(),
    };
    assert_eq!(revert("b b", &edit), None);
    assert_eq!(revert("c", &edit), None);
    assert_eq!(revert("c b", &edit).as_deref(), Some("c a"));
}
