//! Reaching an API server: by a kubeconfig, or as a pod of its cluster.

use std::{fmt, path::PathBuf, time::Duration};

use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};

/// Longest time that connecting may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How the API server is found, and who we are there.
#[derive(Clone, PartialEq, Eq)]
pub enum Access {
    /// The current context of a kubeconfig file.
    File(PathBuf),
    /// The current context of a kubeconfig that somebody else wrote, as those in Secrets for remote
    /// clusters: it must bring its credentials along. Commands and files, which could be any of this
    /// machine, are refused.
    Foreign(String),
    /// The service account of the pod that this process runs in.
    InCluster,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            // It holds credentials.
            Self::Foreign(_) => f.write_str("Foreign"),
            Self::InCluster => f.write_str("InCluster"),
        }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The kubeconfig file cannot be used.
    #[error("read the kubeconfig {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<kube::config::KubeconfigError>,
    },
    /// The kubeconfig cannot be used.
    #[error("read the kubeconfig")]
    Foreign(#[source] Box<kube::config::KubeconfigError>),
    /// A kubeconfig of somebody else would run commands or read files here.
    #[error("the kubeconfig has {what}, which is not allowed here")]
    Untrusted {
        /// What it has.
        what: &'static str,
    },
    /// This process is no pod.
    #[error("this is no pod of a cluster")]
    NoPod(#[source] Box<kube::config::InClusterError>),
    /// The credentials cannot be used.
    #[error("make the client of the API server")]
    Client(#[source] Box<kube::Error>),
}

/// A way to an API server.
#[derive(Clone)]
pub struct Connection {
    /// The client. Cloning it is cheap. It does not repeat what fails: when to try again is its
    /// user's to say.
    pub client: Client,
    /// Where the API server is, for people.
    pub server: String,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Makes a client. Nothing is asked of the API server yet: it need not be there.
///
/// # Errors
/// When the kubeconfig or the credentials cannot be used, or this process is no pod.
pub async fn connect(access: &Access) -> Result<Connection, ConnectError> {
    let options = KubeConfigOptions::default();
    let mut config = match access {
        Access::File(path) => {
            let failed = |source| ConnectError::File {
                path: path.clone(),
                source: Box::new(source),
            };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            let read = Config::from_custom_kubeconfig(file, &options).await;
            read.map_err(failed)?
        }
        Access::Foreign(text) => {
            let failed = |source| ConnectError::Foreign(Box::new(source));
            let file = Kubeconfig::from_yaml(text).map_err(failed)?;
            check_trust(&file)?;
            let read = Config::from_custom_kubeconfig(file, &options).await;
            read.map_err(failed)?
        }
        Access::InCluster => {
            Config::incluster().map_err(|source| ConnectError::NoPod(Box::new(source)))?
        }
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.default_retry = false;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).map_err(|e| ConnectError::Client(Box::new(e)))?;
    Ok(Connection { client, server })
}

/// Refuses what would run commands or read files of this machine.
fn check_trust(file: &Kubeconfig) -> Result<(), ConnectError> {
    let users = file.auth_infos.iter().filter_map(|u| u.auth_info.as_ref());
    let clusters = file.clusters.iter().filter_map(|c| c.cluster.as_ref());
    let files_of_users = users.clone().any(|user: &AuthInfo| {
        user.token_file.is_some() || user.client_certificate.is_some() || user.client_key.is_some()
    });
    let has = [
        (users.clone().any(|u| u.exec.is_some()), "a command"),
        (
            users.clone().any(|u| u.auth_provider.is_some()),
            "an authentication provider",
        ),
        (
            files_of_users || clusters.clone().any(|c| c.certificate_authority.is_some()),
            "the path of a file",
        ),
    ];
    match has.iter().find(|(has, _)| *has) {
        Some((_, what)) => Err(ConnectError::Untrusted { what }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(user: &str, cluster: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             contexts: [{{name: it, context: {{cluster: far, user: me}}}}]\n\
             clusters: [{{name: far, cluster: {{server: 'https://10.0.0.1:6443', {cluster}}}}}]\n\
             users: [{{name: me, user: {{{user}}}}}]\n"
        )
    }

    #[track_caller]
    fn check(user: &str, cluster: &str, expected: Result<&str, &str>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let access = Access::Foreign(kubeconfig(user, cluster));
        let got = runtime.block_on(async { connect(&access).await });
        let got = got.map(|c| c.server).map_err(|e| e.to_string());
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(got, expected);
    }

    #[test]
    fn kubeconfigs_of_others_bring_their_credentials() {
        check("token: secret", "", Ok("https://10.0.0.1:6443/"));
        let refused = |what| Err(what);
        check(
            "exec: {command: rm, apiVersion: client.authentication.k8s.io/v1}",
            "",
            refused("the kubeconfig has a command, which is not allowed here"),
        );
        check(
            "tokenFile: /etc/token",
            "",
            refused("the kubeconfig has the path of a file, which is not allowed here"),
        );
        check(
            "token: secret",
            "certificate-authority: /etc/ca.pem",
            refused("the kubeconfig has the path of a file, which is not allowed here"),
        );
    }

    #[test]
    fn credentials_are_not_shown() {
        let access = Access::Foreign(kubeconfig("token: secret", ""));
        assert_eq!(format!("{access:?}"), "Foreign");
    }
}
