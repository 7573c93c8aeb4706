//! The schemes of URLs, and the advice that differs between them.

use super::advised;
use crate::error::LockError;

/// The scheme of a URL of lock servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerScheme {
    pub(super) form: UrlForm,
    pub(super) tls: bool,
}

/// What follows the scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UrlForm {
    /// `user:password@host:port/db`.
    Server,
    /// `/path`. User, password and database are parameters.
    Socket,
    /// `user:password@host,host/service/db`.
    Sentinel,
    /// `user:password@host,host/db?sentinelMasterId=service`, as the client Lettuce has it.
    LettuceSentinel,
    /// `user:password@host,host`.
    Cluster,
    /// `user:password@host,host,host/db`.
    Quorum,
}

impl ServerScheme {
    /// Returns the scheme of this name in lower case.
    pub(super) fn of(name: &str) -> Option<Self> {
        let end = name.find(['+', '-']).unwrap_or(name.len());
        let (protocol, topology) = name.split_at(end);
        let (is_redis, tls) = match protocol {
            "redis" => (true, false),
            "rediss" => (true, true),
            "valkey" => (false, false),
            "valkeys" => (false, true),
            "unix" if topology.is_empty() => {
                let form = UrlForm::Socket;
                return Some(Self { form, tls: false });
            }
            _ => return None,
        };
        let form = match topology {
            "" => UrlForm::Server,
            "+unix" if !tls => UrlForm::Socket,
            "+sentinel" => UrlForm::Sentinel,
            "-sentinel" if is_redis => UrlForm::LettuceSentinel,
            "+cluster" => UrlForm::Cluster,
            "-cluster" if is_redis => UrlForm::Cluster,
            "+quorum" => UrlForm::Quorum,
            _ => return None,
        };
        Some(Self { form, tls })
    }

    /// Returns an error if this build has no TLS, but the scheme needs it. `connect` checks the feature of the
    /// topology.
    pub(super) fn check_feature(self) -> Result<(), LockError> {
        if !self.tls || cfg!(feature = "__tls") {
            return Ok(());
        }
        let (text, advice) = match self.form {
            UrlForm::Server | UrlForm::Socket => (
                "`rediss://` in the lock URL needs the feature `tls` or `tls-aws-lc` of lock-core",
                "enable it in Cargo.toml, or use redis://",
            ),
            UrlForm::Sentinel | UrlForm::LettuceSentinel => (
                "TLS in the lock URL needs the feature `tls` or `tls-aws-lc` of lock-core",
                "enable it in Cargo.toml",
            ),
            UrlForm::Cluster => (
                "TLS and a cluster in the lock URL need the features `tls` (or `tls-aws-lc`) and `cluster` of \
                 lock-core",
                "enable both in Cargo.toml",
            ),
            UrlForm::Quorum => (
                "TLS and a quorum in the lock URL need the features `tls` (or `tls-aws-lc`) and `quorum` of \
                 lock-core",
                "enable both in Cargo.toml",
            ),
        };
        Err(advised(text, advice))
    }

    /// Several hosts may follow the scheme.
    pub(super) fn has_list(self) -> bool {
        !matches!(self.form, UrlForm::Server | UrlForm::Socket)
    }

    /// Returns the error of a text after `#`.
    pub(super) fn refuse_fragment(self, fragment: &str) -> LockError {
        if fragment == "insecure" {
            return advised(
                "`#insecure` in the lock URL: the certificates of servers are always checked",
                "give the certificate of your authority by `?ssl_ca_certs=`",
            );
        }
        let advice = match self.form {
            UrlForm::LettuceSentinel => {
                "name the service by `?sentinelMasterId=`, and the certificate of your authority by \
                 `ssl_ca_certs`"
            }
            _ => {
                "write `#` as `%23`; the certificate of your authority is given by `?ssl_ca_certs=`"
            }
        };
        advised("the lock URL has a `#` with a text after it", advice)
    }

    /// Advises a scheme with several hosts.
    pub(super) fn schemes_of_lists(self) -> &'static str {
        if self.tls {
            "use rediss+cluster://, rediss+sentinel:// or rediss+quorum://"
        } else {
            "use redis+cluster://, redis+sentinel:// or redis+quorum://"
        }
    }

    pub(super) fn how_to_name_a_service(self) -> &'static str {
        match (self.form, self.tls) {
            (UrlForm::LettuceSentinel, false) => {
                "name it, such as redis-sentinel://host?sentinelMasterId=mymaster or \
                 redis+sentinel://host/mymaster"
            }
            (UrlForm::LettuceSentinel, true) => {
                "name it, such as rediss-sentinel://host?sentinelMasterId=mymaster or \
                 rediss+sentinel://host/mymaster"
            }
            (_, false) => "name it, such as redis+sentinel://host/mymaster",
            (_, true) => "name it, such as rediss+sentinel://host/mymaster",
        }
    }

    /// Advises the same scheme with TLS.
    pub(super) fn with_tls(self) -> &'static str {
        match self.form {
            UrlForm::Server | UrlForm::Socket => "use rediss://, or remove the parameter",
            UrlForm::Sentinel => "use rediss+sentinel://, or remove the parameter",
            UrlForm::LettuceSentinel => "use rediss-sentinel://, or remove the parameter",
            UrlForm::Cluster => "use rediss+cluster://, or remove the parameter",
            UrlForm::Quorum => "use rediss+quorum://, or remove the parameter",
        }
    }
}
