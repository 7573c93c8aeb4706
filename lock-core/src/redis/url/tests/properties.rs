//! What is true of all URLs.

use std::fmt::Write as _;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::hosts::repeated;
use super::*;

/// Encodes all that is not plain, so that the text may be anywhere in a URL.
fn encoded(text: &str) -> String {
    let mut url = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

/// Prints a deployment as a URL that names it.
fn url_of(deployment: &Deployment) -> String {
    let is_socket = matches!(
        &deployment.topology,
        Topology::Standalone(NodeAddress::Unix(_))
    );
    let scheme = if deployment.tls.is_some() {
        "rediss"
    } else {
        "redis"
    };
    let list = |nodes: &[NodeAddress]| {
        let texts: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        texts.join(",")
    };
    let (topology, hosts, path) = match &deployment.topology {
        Topology::Standalone(NodeAddress::Unix(path)) => {
            let path = path.to_str().unwrap().trim_start_matches('/');
            ("+unix", String::new(), format!("/{}", encoded(path)))
        }
        Topology::Standalone(node) => ("", node.to_string(), format!("/{}", deployment.login.db)),
        Topology::Sentinel(of_sentinels) => {
            let path = format!(
                "/{}/{}",
                encoded(&of_sentinels.service),
                deployment.login.db
            );
            ("+sentinel", list(&of_sentinels.addresses), path)
        }
        Topology::Cluster(nodes) => ("+cluster", list(nodes), String::new()),
        Topology::Quorum(servers) => {
            let nodes = servers.iter().map(|deployment| match &deployment.topology {
                Topology::Standalone(node) => node.clone(),
                other => panic!("{other:?}"),
            });
            let hosts = list(&nodes.collect::<Vec<_>>());
            ("+quorum", hosts, format!("/{}", deployment.login.db))
        }
    };
    let login = &deployment.login;
    let mut url = format!("{scheme}{topology}://");
    let mut query = Vec::new();
    let (user, password) = (login.user.as_deref(), login.password.as_deref());
    if is_socket {
        query.extend([("user", user), ("pass", password)].map(owned));
        query.push(("db", Some(login.db.to_string())));
    } else if user.is_some() || password.is_some() {
        let (user, password) = (user.unwrap_or_default(), password.unwrap_or_default());
        let _ = write!(url, "{}:{}@", encoded(user), encoded(password));
    }
    let protocol = login.protocol.map(|protocol| match protocol {
        Protocol::Resp2 => "resp2",
        Protocol::Resp3 => "3",
    });
    query.extend(
        [
            ("client_name", deployment.client_name.as_deref()),
            ("protocol", protocol),
        ]
        .map(owned),
    );
    if let Some(tls) = &deployment.tls {
        let files = [
            ("ssl_ca_certs", &tls.ca),
            ("ssl_certfile", &tls.certificate),
            ("ssl_keyfile", &tls.key),
        ];
        let path = |path: &Option<std::path::PathBuf>| Some(path.as_ref()?.to_str()?.to_owned());
        query.extend(files.map(|(name, file)| (name, path(file))));
        query.push(("ssl_server_name", tls.server_name.clone()));
    }
    if let Topology::Sentinel(sentinel) = &deployment.topology {
        let login = &sentinel.login;
        let tls = sentinel.tls.to_string();
        query.extend(
            [
                ("sentinel_username", login.user.as_deref()),
                ("sentinel_password", login.password.as_deref()),
                ("sentinel_tls", Some(&tls)),
            ]
            .map(owned),
        );
    }
    let _ = write!(url, "{hosts}{path}");
    let mut separator = '?';
    for (name, value) in query {
        if let Some(value) = value {
            let _ = write!(url, "{separator}{name}={}", encoded(&value));
            separator = '&';
        }
    }
    url
}

fn owned(pair: (&'static str, Option<&str>)) -> (&'static str, Option<String>) {
    (pair.0, pair.1.map(str::to_owned))
}

fn nodes(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<NodeAddress>> {
    let host = prop_oneof![
        "[a-zA-Z][a-zA-Z0-9._-]{0,8}",
        any::<std::net::Ipv4Addr>().prop_map(|address| address.to_string()),
        any::<std::net::Ipv6Addr>().prop_map(|address| address.to_string()),
    ];
    let host = host.prop_filter("a wildcard", |host| host != "0.0.0.0" && host != "::");
    let node = (host, 1..=u16::MAX).prop_map(|(host, port)| NodeAddress::Tcp(host, port));
    vec(node, count).prop_filter("twice", |nodes| repeated(nodes).is_none())
}

fn topologies() -> impl Strategy<Value = Topology> {
    prop_oneof![
        nodes(1..2).prop_map(|nodes| Topology::Standalone(nodes[0].clone())),
        "/[^/\0].{0,10}".prop_map(|path| Topology::Standalone(NodeAddress::Unix(path.into()))),
        nodes(1..5).prop_map(Topology::Cluster),
        // Login and TLS follow.
        nodes(3..7).prop_map(|nodes| {
            let standalone = |node| plain(Topology::Standalone(node), Login::default());
            Topology::Quorum(nodes.into_iter().map(standalone).collect())
        }),
        (nodes(1..5), ".{1,10}", logins(), any::<bool>()).prop_map(
            |(addresses, service, login, tls)| Topology::Sentinel(Sentinels {
                addresses,
                service,
                login,
                tls,
            })
        ),
    ]
}

fn logins() -> impl Strategy<Value = Login> {
    let protocol = prop_oneof![Just(Protocol::Resp2), Just(Protocol::Resp3)];
    (
        option::of(".{1,10}"),
        option::of(".{1,10}"),
        any::<u32>(),
        option::of(protocol),
    )
        .prop_map(|(user, password, db, protocol)| Login {
            user,
            password,
            db: db.into(),
            protocol,
        })
}

fn tls() -> impl Strategy<Value = Option<TlsFiles>> {
    let text = || option::of(".{1,10}");
    let files = (text(), option::of((".{1,10}", ".{1,10}")), text());
    let files = files.prop_map(|(ca, client, server_name)| {
        let (certificate, key) = client.unzip();
        TlsFiles {
            ca: ca.map(Into::into),
            certificate: certificate.map(Into::into),
            key: key.map(Into::into),
            server_name,
        }
    });
    option::of(files).prop_map(|files| files.filter(|_| TLS))
}

fn deployments() -> impl Strategy<Value = Deployment> {
    (topologies(), logins(), tls(), option::of(".{1,10}")).prop_map(
        |(topology, login, tls, client_name)| {
            let mut deployment = Deployment {
                topology,
                login,
                tls,
                client_name,
            };
            let copy = deployment.clone();
            match &mut deployment.topology {
                Topology::Standalone(NodeAddress::Unix(_)) => deployment.tls = None,
                Topology::Standalone(NodeAddress::Tcp(..)) => {}
                Topology::Cluster(_) => deployment.login.db = 0,
                Topology::Sentinel(sentinel) => {
                    sentinel.tls &= copy.tls.is_some();
                    sentinel.login.db = 0;
                    sentinel.login.protocol = copy.login.protocol;
                }
                Topology::Quorum(servers) => {
                    for server in servers {
                        let topology = server.topology.clone();
                        *server = Deployment {
                            topology,
                            ..copy.clone()
                        };
                    }
                }
            }
            deployment
        },
    )
}

/// A URL as people write it, with what may be wrong.
fn rough_urls() -> impl Strategy<Value = String> {
    let scheme = "(redis|rediss|valkey|valkeys|unix|Redis)([+-](unix|sentinel|cluster|quorum))?";
    let piece = prop_oneof![
        "[/#?@:,&=%\\[\\]]",
        "(a|b|0|1|::1|%41|%FF|é|db|pass|protocol|sentinelMasterId|ssl_ca_certs|localhost|0.0.0.0)",
    ];
    (scheme, vec(piece, 0..20))
        .prop_map(|(scheme, pieces)| format!("{scheme}://{}", pieces.concat()))
}

proptest! {
    #[test]
    fn parser_never_panics(text in any::<String>(), rough in rough_urls()) {
        let _ = parse(&text);
        let _ = parse(&format!("redis://{text}"));
        let _ = parse(&format!("redis+sentinel://{text}"));
        let _ = parse(&format!("unix://{text}"));
        let _ = parse(&rough);
    }

    #[test]
    fn deployment_is_read_back_from_its_url(deployment in deployments()) {
        let url = url_of(&deployment);
        match parse(&url) {
            Ok(read) => prop_assert_eq!(read, deployment, "{}", url),
            Err(error) => prop_assert!(false, "{}: {}", url, error),
        }
    }

    /// The password has no letters that the texts of errors have.
    #[test]
    fn error_never_shows_a_password(
        scheme in "(redis|rediss|valkey)([+-](sentinel|cluster|quorum))?",
        user in "[a-z]{0,3}",
        start in "[/#?@:,&=%a-z]{0,3}",
        end in "[/#?@:,&=%a-z]{0,3}",
        rest in "[a-z0-9,:/?#&=@]{0,12}",
        has_host in any::<bool>(),
    ) {
        let url = if has_host {
            format!("{scheme}://{user}:{start}QZ7X{end}@{rest}")
        } else {
            // What follows `@` and `?` are parameters, whose names are shown.
            format!("{scheme}://{user}:{}QZ7X{end}", start.replace(['@', '?'], ""))
        };
        if let Err(error) = parse(&url) {
            for text in [error.to_string(), format!("{error:?}")] {
                prop_assert!(!text.contains("QZ7X"), "{}: {}", url, text);
            }
        }
    }

    #[test]
    fn error_never_shows_a_value(
        deployment in deployments(),
        broken in "(&x=1|&protocol=2|&db=x|&db=1|#|%|&client_name=%zz|&pass=%FF)",
    ) {
        let mut deployment = deployment;
        deployment.login.password = Some("QZ7X".into());
        deployment.client_name = Some("QZ7X".into());
        let url = format!("{}{broken}", url_of(&deployment));
        if let Err(error) = parse(&url) {
            let text = format!("{error} {error:?}");
            prop_assert!(!text.contains("QZ7X"), "{}: {}", url, text);
        }
    }
}
