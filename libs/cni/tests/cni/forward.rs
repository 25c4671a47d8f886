//! Plugins that work: their input, and their order.
//!
//! Invariant: what a plugin reads is compared in full.
//! Failure: a key too many or too few.

use cni::{Error, ErrorKind};
use serde_json::json;

use crate::scratch::{RESULT, Scratch, WORKS, network, parse};

fn three(scratch: &Scratch) {
    for kind in ["first", "second", "third"] {
        scratch.plugin(kind, WORKS);
    }
}

#[tokio::test]
async fn a_chain_is_added_forward_checked_forward_and_deleted_backward() {
    let scratch = Scratch::new();
    three(&scratch);
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    let network = network("1.0.0", &["first", "second", "third"]);
    let result = runtime.add(&network, &attachment).await.unwrap();
    assert_eq!(result.parsed.ips[0].address.to_string(), "10.9.0.2/24");
    assert_eq!(
        result.raw,
        serde_json::from_str::<serde_json::Value>(RESULT).unwrap()
    );
    assert_eq!(scratch.cache(), ["net-c1-eth0"]);
    let cached = runtime.cached().await.unwrap();
    assert!(cached[0].complete && cached[0].network == "net");
    assert_eq!(cached[0].netns, Some(attachment.netns.clone()));

    runtime.check(&attachment).await.unwrap();
    runtime.del(&attachment, None).await.unwrap();
    let order = [
        "ADD first",
        "ADD second",
        "ADD third",
        "CHECK first",
        "CHECK second",
        "CHECK third",
        "DEL third",
        "DEL second",
        "DEL first",
    ];
    assert_eq!(scratch.log(), order);
    assert!(scratch.cache().is_empty());
    runtime.del(&attachment, None).await.unwrap();
    assert_eq!(scratch.log(), order, "a second DEL has nothing to call");
}

#[tokio::test]
async fn a_plugin_receives_its_configuration_and_declared_capabilities() {
    let scratch = Scratch::new();
    three(&scratch);
    let network = parse(
        &json!({"cniVersion": "0.4.0", "cniVersions": ["1.0.0"], "name": "net", "plugins": [
            {"type": "first", "name": "other", "cniVersion": "0.1.0", "unknown": {"deep": [1]}},
            {"type": "second", "capabilities": {"portMappings": true, "bandwidth": false}},
        ]}),
    );
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    runtime.add(&network, &attachment).await.unwrap();
    assert_eq!(
        scratch.input("first", "ADD"),
        json!({"type": "first", "name": "net", "cniVersion": "1.0.0", "unknown": {"deep": [1]}})
    );
    let previous: serde_json::Value = serde_json::from_str(RESULT).unwrap();
    let second = json!({
        "type": "second", "name": "net", "cniVersion": "1.0.0", "prevResult": previous,
        "capabilities": {"portMappings": true, "bandwidth": false},
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]},
    });
    assert_eq!(scratch.input("second", "ADD"), second);
    runtime.check(&attachment).await.unwrap();
    assert_eq!(scratch.input("second", "CHECK"), second);
    runtime.del(&attachment, None).await.unwrap();
    assert_eq!(scratch.input("second", "DEL"), second);
}

#[tokio::test]
async fn the_environment_is_the_specifications_and_nothing_of_ours() {
    let scratch = Scratch::new();
    three(&scratch);
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    runtime
        .add(&network("1.0.0", &["first"]), &attachment)
        .await
        .unwrap();
    let mut seen = scratch.variables("first", "ADD");
    for of_the_shell in ["PWD", "OLDPWD", "SHLVL", "_"] {
        seen.remove(of_the_shell);
    }
    let names: Vec<&str> = seen.keys().map(String::as_str).collect();
    let all = [
        "CNI_ARGS",
        "CNI_COMMAND",
        "CNI_CONTAINERID",
        "CNI_IFNAME",
        "CNI_NETNS",
        "CNI_PATH",
        "PATH",
    ];
    assert_eq!(names, all);
    assert_eq!(seen["CNI_ARGS"], "IgnoreUnknown=1;K8S_POD_NAME=p");
    assert_eq!(seen["CNI_NETNS"], attachment.netns.to_str().unwrap());
    let both = format!(
        "{}:{}",
        scratch.path("none").display(),
        scratch.path("bin").display()
    );
    assert_eq!(seen["CNI_PATH"], both);
}

#[tokio::test]
async fn an_old_version_has_no_check_and_no_result_on_delete() {
    let scratch = Scratch::new();
    let result = RESULT.replace("1.0.0", "0.3.1");
    scratch.plugin(
        "first",
        &format!("[ $CNI_COMMAND != ADD ] || echo '{result}'"),
    );
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    runtime
        .add(&network("0.3.1", &["first"]), &attachment)
        .await
        .unwrap();
    runtime.check(&attachment).await.unwrap();
    runtime.del(&attachment, None).await.unwrap();
    assert_eq!(scratch.log(), ["ADD first", "DEL first"]);
    assert!(scratch.input("first", "DEL").get("prevResult").is_none());
}

#[tokio::test]
async fn check_respects_the_switch_and_needs_an_attachment() {
    let scratch = Scratch::new();
    three(&scratch);
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    let error = runtime.check(&attachment).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let quiet = parse(&json!({
        "cniVersion": "1.0.0", "name": "net", "disableCheck": true, "plugins": [{"type": "first"}],
    }));
    runtime.add(&quiet, &attachment).await.unwrap();
    runtime.check(&attachment).await.unwrap();
    assert_eq!(scratch.log(), ["ADD first"]);
}

#[tokio::test]
async fn delete_uses_the_configuration_that_add_was_called_with() {
    let scratch = Scratch::new();
    three(&scratch);
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    runtime
        .add(&network("1.0.0", &["first"]), &attachment)
        .await
        .unwrap();
    let changed =
        parse(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "second"}]}));
    let mut requested = attachment.clone();
    requested.args.clear();
    runtime.del(&requested, Some(&changed)).await.unwrap();
    assert_eq!(scratch.log(), ["ADD first", "DEL first"]);
    assert_eq!(
        scratch.variables("first", "DEL")["CNI_ARGS"],
        "IgnoreUnknown=1;K8S_POD_NAME=p"
    );
}

#[tokio::test]
async fn delete_without_a_cache_calls_the_fallback_and_a_lost_namespace_is_left_empty() {
    let scratch = Scratch::new();
    three(&scratch);
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    runtime.del(&attachment, None).await.unwrap();
    assert!(scratch.log().is_empty());
    std::fs::remove_file(&attachment.netns).unwrap();
    let network = network("1.0.0", &["first", "second"]);
    runtime.del(&attachment, Some(&network)).await.unwrap();
    assert_eq!(scratch.log(), ["DEL second", "DEL first"]);
    assert_eq!(scratch.variables("first", "DEL")["CNI_NETNS"], "");
}

#[tokio::test]
async fn what_is_attached_is_not_attached_twice() {
    let scratch = Scratch::new();
    three(&scratch);
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    let network = network("1.0.0", &["first"]);
    runtime.add(&network, &attachment).await.unwrap();
    let error = runtime.add(&network, &attachment).await.unwrap_err();
    assert!(matches!(error, Error::Attached { .. }));
    assert_eq!(scratch.log(), ["ADD first"]);
}

#[tokio::test]
async fn the_network_is_read_afresh_each_time() {
    let scratch = Scratch::new();
    let runtime = scratch.runtime();
    assert_eq!(
        runtime.network().await.unwrap_err().kind(),
        ErrorKind::NotReady
    );
    let config = r#"{"cniVersion":"1.0.0","name":"late","type":"first"}"#;
    std::fs::write(scratch.path("conf/10.conf"), config).unwrap();
    assert_eq!(runtime.network().await.unwrap().name(), "late");
}
