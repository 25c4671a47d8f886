//! Containers, images and grace periods.
//!
//! Invariant: a request is taken over as it is, or refused naming the field.
//! Failure: the assertion shows the field.

use super::*;

#[test]
fn a_container_is_taken_over_as_it_is() {
    let config = container::config(Some(machine())).unwrap();
    assert_eq!(config.metadata.name, "vm");
    assert_eq!(config.image.user_specified_image, "example.org/disk:1");
    assert_eq!(config.mounts[0].container_path, "/etc/hosts");
    assert_eq!(config.devices[0].container_path, "/");
    assert_eq!(config.devices[0].permissions, "mrw");
    assert_eq!(config.resources.hugepage_limits, [("2Mi".to_owned(), 7)]);
    assert_eq!(config.stop_signal, i32::from(v1::Signal::Sigint));
}

#[test]
fn paths_in_a_container_are_cleaned_and_those_of_the_node_stay() {
    let mut request = machine();
    request.mounts[0].container_path = "/srv/data/".into();
    request.mounts[0].host_path = "/var//lib/".into();
    request.devices[0].container_path = "/dev//./data/".into();
    let config = container::config(Some(request)).unwrap();
    let mount = &config.mounts[0];
    assert_eq!(
        (mount.container_path.as_str(), mount.host_path.as_str()),
        ("/srv/data", "/var//lib/")
    );
    assert_eq!(config.devices[0].container_path, "/dev/data");
}

#[test]
fn two_spellings_of_one_path_are_refused() {
    let with = |other: &str| {
        let mut request = machine();
        let mut mount = request.mounts[0].clone();
        request.mounts[0].container_path = "/srv/a".into();
        mount.container_path = other.into();
        request.mounts.push(mount);
        container::config(Some(request)).map(|config| config.mounts.len())
    };
    let last = with("/srv/a/b").unwrap();
    // kubelet adds a file of its own over the user's.
    assert_eq!(with("/srv/a").unwrap(), last);
    for other in ["/srv/a/", "/srv//a", "/srv/./a"] {
        let text = with(other).unwrap_err().to_string();
        let words = format!(
            "config.mounts[{}].container_path: something else is mounted at /srv/a, and {other} is the \
             same path",
            last - 1
        );
        assert!(text.starts_with(&words), "{text}");
    }
}

#[rstest]
#[case::metadata(|c: &mut v1::ContainerConfig| c.metadata = None, "config.metadata")]
#[case::name(|c: &mut v1::ContainerConfig| c.metadata = Some(Default::default()), "config.metadata.name")]
#[case::image(|c: &mut v1::ContainerConfig| c.image = None, "config.image")]
#[case::empty_image(|c: &mut v1::ContainerConfig| c.image = Some(Default::default()), "config.image.image")]
#[case::climbing_log(|c: &mut v1::ContainerConfig| c.log_path = "../x".into(), "config.log_path")]
#[case::absolute_log(|c: &mut v1::ContainerConfig| c.log_path = "/etc/x".into(), "config.log_path")]
#[case::signal(|c: &mut v1::ContainerConfig| c.stop_signal = 99, "config.stop_signal")]
#[case::no_path(|c: &mut v1::ContainerConfig| c.mounts[0].container_path.clear(), "config.mounts[0].container_path")]
#[case::relative(|c: &mut v1::ContainerConfig| c.mounts[0].host_path = "x".into(), "config.mounts[0].host_path")]
#[case::propagation(|c: &mut v1::ContainerConfig| c.mounts[0].propagation = 7, "config.mounts[0].propagation")]
#[case::image_mount(
    |c: &mut v1::ContainerConfig| c.mounts[0].image = Some(Default::default()),
    "config.mounts[0].image"
)]
#[case::rro_writable(
    |c: &mut v1::ContainerConfig| {
        c.mounts[0].recursive_read_only = true;
        c.mounts[0].readonly = false;
    },
    "config.mounts[0].recursive_read_only"
)]
#[case::rro_propagated(
    |c: &mut v1::ContainerConfig| {
        c.mounts[0].recursive_read_only = true;
        c.mounts[0].propagation = 1;
    },
    "config.mounts[0].recursive_read_only"
)]
#[case::relative_device(|c: &mut v1::ContainerConfig| c.devices[0].host_path = "x".into(), "config.devices[0].host_path")]
#[case::device_without_path(|c: &mut v1::ContainerConfig| c.devices[0].container_path.clear(), "config.devices[0].container_path")]
#[case::group_alone(
    |c: &mut v1::ContainerConfig| {
        let context = c.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        context.run_as_group = Some(v1::Int64Value { value: 1 });
    },
    "config.linux.security_context.run_as_group"
)]
fn a_container_that_makes_no_sense_is_refused_naming_the_field(
    #[case] change: fn(&mut v1::ContainerConfig),
    #[case] field: &str,
) {
    let mut config = machine();
    change(&mut config);
    assert_eq!(container::config(Some(config)).unwrap_err().field, field);
    assert_eq!(container::config(None).unwrap_err().field, "config");
}

#[test]
fn a_group_with_a_user_is_fine() {
    let mut config = machine();
    let linux = config.linux.as_mut().unwrap();
    let context = linux.security_context.as_mut().unwrap();
    context.run_as_group = Some(v1::Int64Value { value: 1 });
    context.run_as_username = "web".into();
    assert!(container::config(Some(config)).is_ok());
}

#[test]
fn a_negative_grace_is_none_and_a_long_one_can_be_added_to_now() {
    assert_eq!(container::grace(-5), Duration::ZERO);
    assert_eq!(container::grace(30), Duration::from_secs(30));
    let longest = container::grace(i64::MAX);
    assert!(std::time::Instant::now().checked_add(longest).is_some());
}
