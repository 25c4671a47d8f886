use super::*;

fn status(code: u16, reason: &str, message: &str, name: &str) -> kube::Error {
    let text = format!(
        r#"{{"status":"Failure","code":{code},"reason":"{reason}","message":"{message}","details":{{"name":"{name}"}}}}"#
    );
    kube::Error::Api(serde_json::from_str::<Status>(&text).unwrap().boxed())
}

/// An answer as the API server gave it.
fn verbatim(text: &str) -> kube::Error {
    kube::Error::Api(serde_json::from_str::<Status>(text).unwrap().boxed())
}

fn shown(error: kube::Error) -> String {
    let error = ClusterError::about("default", "web", error);
    format!("{error}\n  {}", error.advice().unwrap_or_default())
}

#[test]
fn every_refusal_states_the_problem_and_the_remedy() {
    let all = [
        status(404, "NotFound", "page not found", ""),
        status(404, "NotFound", "not found", "web"),
        status(409, "Conflict", "the object has been modified", "web"),
        status(409, "AlreadyExists", "exists", "web"),
        status(
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
            "",
        ),
        status(
            422,
            "Invalid",
            "spec: Invalid value: set exactly one of",
            "web",
        ),
        status(401, "Unauthorized", "Unauthorized", ""),
        status(
            403,
            "Forbidden",
            "user eve cannot patch virtualmachines",
            "web",
        ),
        verbatim(
            r#"{"status":"Failure","message":"namespaces \"default\" not found","reason":"NotFound",
                "details":{"name":"default","kind":"namespaces"},"code":404}"#,
        ),
        verbatim(
            r#"{"status":"Failure","message":"Apply failed with 1 conflict: conflict with \"kubectl-create\": .spec.imageName",
                "reason":"Conflict","details":{"causes":[{"reason":"FieldManagerConflict",
                "message":"conflict with \"kubectl-create\"","field":".spec.imageName"}]},"code":409}"#,
        ),
    ];
    insta::assert_snapshot!(all.map(shown).join("\n"));
}

#[test]
fn a_missing_image_is_named_with_the_place_where_it_was_looked_for() {
    let shown = |namespace: &str| {
        let namespace = namespace.to_owned();
        let name = "debian".to_owned();
        let error = ClusterError::NoImage { namespace, name };
        assert!(error.advice().unwrap().contains("vmletctl image list"));
        error.to_string()
    };
    let words = "there is no image debian in namespace x, nor of the cluster";
    assert_eq!(shown("x"), words);
    assert_eq!(shown(""), "there is no image debian of the cluster");
}

#[test]
fn a_list_that_is_not_found_means_that_the_kind_is_missing() {
    assert!(matches!(
        ClusterError::from_api(status(404, "NotFound", "x", "web")),
        ClusterError::NoKinds
    ));
}

#[test]
fn words_of_libraries_and_of_the_kernels_numbers_are_left_out() {
    let missing =
        KubeconfigError::ReadConfig(std::io::Error::from_raw_os_error(2), "/no/such".into());
    let error = ClusterError::Kubeconfig(Box::new(missing)).to_string();
    assert_eq!(
        error,
        "there is no usable kubeconfig: cannot read /no/such: No such file or directory"
    );
}
