//! Encrypted links: TLS 1.3 (RFC 8446) over TCP, in which each party proves a raw public key (RFC 7250).
//!
//! There are no certificates and no authorities. The key exchange is X25519MLKEM768 and nothing else: a session
//! recorded today stays closed to a quantum computer of tomorrow. Sessions are never resumed, so each has new keys
//! and a new [`Link::exporter`]. The client decides about the server's key inside the handshake, before it shows its
//! own key. A server takes every key that is proved and decides afterwards ([`TlsLink::peer_key`],
//! [`crate::Admission`]).

use std::fmt::{self, Display};
use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName,
    PeerIncompatible, ServerConfig, ServerConnection, SignatureScheme,
};

use crate::link::WireBytes;
use crate::tcp::{ConnectOptions, TcpLink, dial, failed};
use crate::{Identity, Link, NetError, PublicKey};

/// The step in errors of the handshake of TLS.
const STEP: &str = "tls";

/// The name of the protocol inside TLS, so that a server of another protocol does not answer.
const PROTOCOL: &[u8] = b"waggle/1";

/// Label of the exporter (RFC 5705).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-waggle-session";

/// Connects to a listening peer as [`crate::tcp::connect`] does, encrypts the connection and proves `identity`. The
/// whole handshake of TLS may take at most the read time-out. `trust` decides about the server's key.
///
/// Errors: [`NetError::Unreachable`]; [`NetError::Untrusted`] if `trust` says no, in which case the peer has learned
/// nothing; [`NetError::Tls`] if the peer speaks no TLS or another version of it; [`NetError::Closed`],
/// [`NetError::TimedOut`].
pub fn connect(
    addr: impl ToSocketAddrs + Display,
    identity: &Identity,
    trust: impl Fn(&PublicKey) -> bool + Send + Sync + 'static,
    options: ConnectOptions,
) -> Result<TlsLink, NetError> {
    let verifier = Arc::new(ServerKey { trust: Box::new(trust), refused: OnceLock::new() });
    let resolver = AlwaysResolvesClientRawPublicKeys::new(certified(identity)?);
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_client_cert_resolver(Arc::new(resolver));
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // This name is not sent: keys are looked up by address, not by name.
    let name = ServerName::try_from("waggle").map_err(|e| tls(e.to_string()))?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(refused)?;

    let stream = dial(addr, options.connect_timeout)?;
    let link = TlsLink::handshake(connection.into(), stream, options.read_timeout, options.read_timeout);
    link.map_err(|error| match verifier.refused.get() {
        Some(key) => NetError::Untrusted { key: *key },
        None => error,
    })
}

/// Encrypts the accepted, blocking `stream` and proves `identity` to the client. The client must prove a key of its
/// own, which may be any. The whole handshake may take at most `handshake_timeout`, however slowly bytes come.
///
/// Errors: [`NetError::Tls`] if the peer speaks no TLS or another version of it, [`NetError::Closed`],
/// [`NetError::TimedOut`].
pub fn accept(
    stream: TcpStream,
    identity: &Identity,
    handshake_timeout: Duration,
    read_timeout: Duration,
) -> Result<TlsLink, NetError> {
    let resolver = AlwaysResolvesServerRawPublicKeys::new(certified(identity)?);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_client_cert_verifier(Arc::new(AnyClientKey))
        .with_cert_resolver(Arc::new(resolver));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    let connection = ServerConnection::new(Arc::new(config)).map_err(refused)?;
    TlsLink::handshake(connection.into(), stream, handshake_timeout, read_timeout)
}

/// A [`Link`] over an encrypted connection between two parties that know each other's key. Errors, time-outs,
/// closing, and the memory that a peer can take up by not reading are as for [`crate::tcp::TcpLink`].
///
/// A connection that ends without the farewell of TLS is closed like any other. Whether a session was complete is
/// decided by [`Channel::confirm_transcript`](crate::Channel::confirm_transcript). A changed byte ends the link with
/// `InvalidData`.
pub struct TlsLink {
    link: TcpLink,
    peer: PublicKey,
    exporter: [u8; 32],
    protection: String,
}

impl TlsLink {
    fn handshake(
        mut connection: Connection,
        stream: TcpStream,
        limit: Duration,
        read_timeout: Duration,
    ) -> Result<Self, NetError> {
        let deadline = Instant::now() + limit;
        // The last flight must not wait for an acknowledgement of the one before.
        stream.set_nodelay(true).map_err(failed(STEP))?;
        let wire = shake_hands(&mut connection, &stream, deadline, limit)?;
        stream.set_write_timeout(None).map_err(failed(STEP))?;
        let missing = || tls("the peer proved no Ed25519 key".into());
        let [certificate] = connection.peer_certificates().unwrap_or_default() else { return Err(missing()) };
        let peer = PublicKey::from_spki(certificate).ok_or_else(missing)?;
        let exporter = connection.export_keying_material([0; 32], EXPORTER_LABEL, None).map_err(refused)?;
        let group = connection.negotiated_key_exchange_group().map(|group| format!("{:?}", group.name()));
        let suite = connection.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()));
        let protection = format!("{} {}", group.unwrap_or_default(), suite.unwrap_or_default());
        connection.set_buffer_limit(None);
        let link = TcpLink::over(stream, Some(connection), wire, read_timeout).map_err(failed(STEP))?;
        Ok(TlsLink { link, peer, exporter, protection })
    }

    /// The key that the peer has proved.
    pub fn peer_key(&self) -> PublicKey {
        self.peer
    }

    /// Key exchange and cipher, for example `X25519MLKEM768 TLS13_AES_256_GCM_SHA384`.
    pub fn protection(&self) -> &str {
        &self.protection
    }
}

impl fmt::Debug for TlsLink {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("TlsLink").field("peer", &self.peer).field("protection", &self.protection).finish()
    }
}

impl Link for TlsLink {
    crate::forward_link!(self => self.link; send recv timeout take_sender close read_ahead wire_bytes);

    fn exporter(&self) -> Option<[u8; 32]> {
        Some(self.exporter)
    }
}

/// Runs the handshake until `deadline`, which is `limit` after its start. Returns the bytes that it took.
fn shake_hands(
    connection: &mut Connection,
    stream: &TcpStream,
    deadline: Instant,
    limit: Duration,
) -> Result<WireBytes, NetError> {
    let mut socket = stream;
    let mut wire = WireBytes::default();
    let failed = |e: io::Error| NetError::from_io(STEP, e, limit);
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(failed(ErrorKind::TimedOut.into())),
        left => Ok(left),
    };
    let retry = |e: &io::Error| e.kind() == ErrorKind::Interrupted;
    let mut first = [0; 8];
    let mut peeked = 0;
    loop {
        while connection.wants_write() {
            stream.set_write_timeout(Some(left()?)).map_err(failed)?;
            match connection.write_tls(&mut socket) {
                Ok(n) => wire.sent += n as u64,
                Err(e) if retry(&e) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        if !connection.is_handshaking() {
            return Ok(wire);
        }
        stream.set_read_timeout(Some(left()?)).map_err(failed)?;
        if peeked == 0 {
            // These bytes tell the user which program speaks no TLS.
            peeked = match stream.peek(&mut first) {
                Err(e) if retry(&e) => continue,
                peeked => peeked.map_err(failed)?,
            };
        }
        match connection.read_tls(&mut socket) {
            Ok(0) => return Err(failed(ErrorKind::UnexpectedEof.into())),
            Ok(n) => wire.received += n as u64,
            Err(e) if retry(&e) => continue,
            Err(e) => return Err(failed(e)),
        }
        if let Err(error) = connection.process_new_packets() {
            // The peer should hear why; it may be gone.
            let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
            let _ = connection.write_tls(&mut socket);
            return Err(explain(error, &first[..peeked]));
        }
    }
}

/// The meaning of `error`, with which a handshake failed. The peer's first bytes were `first`.
fn explain(error: rustls::Error, first: &[u8]) -> NetError {
    // TLS begins with a record of a handshake or of an alert.
    if !matches!(first, [0x15 | 0x16, 3, ..]) {
        let first = first.escape_ascii();
        return tls(format!("the peer does not speak TLS, it begins with `{first}`; is one party run in plaintext?"));
    }
    match error {
        rustls::Error::AlertReceived(alert) => tls(format!("the peer refused ({alert:?})")),
        error => refused(error),
    }
}

fn tls(what: String) -> NetError {
    NetError::Tls { step: STEP, what }
}

fn refused(error: rustls::Error) -> NetError {
    tls(error.to_string())
}

/// The cryptography that both parties offer.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![kx_group::X25519MLKEM768];
    Arc::new(provider)
}

/// The identity in the place of a certificate.
fn certified(identity: &Identity) -> Result<Arc<CertifiedKey>, NetError> {
    let key = CertificateDer::from(identity.public().spki());
    Ok(Arc::new(CertifiedKey::new(vec![key], identity.signing_key()?)))
}

/// Reads the raw key that stands in the place of a certificate.
fn raw_key(certificate: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<PublicKey, rustls::Error> {
    match PublicKey::from_spki(certificate) {
        Some(key) if others.is_empty() => Ok(key),
        _ => Err(CertificateError::BadEncoding.into()),
    }
}

/// Verifies that the owner of the raw key signed the handshake.
fn verify(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    if signed.scheme != SignatureScheme::ED25519 {
        return Err(CertificateError::BadSignature.into());
    }
    let key = SubjectPublicKeyInfoDer::from(certificate.as_ref());
    verify_tls13_signature_with_raw_key(
        message,
        &key,
        signed,
        &aws_lc_rs::default_provider().signature_verification_algorithms,
    )
}

/// The methods that are the same in both verifiers. They accept only raw Ed25519 keys and only signatures of TLS 1.3.
macro_rules! raw_keys_of_tls13 {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            verify(message, cert, dss)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

/// The client's verifier of the server's key.
struct ServerKey {
    trust: Box<dyn Fn(&PublicKey) -> bool + Send + Sync>,
    /// The key that was not trusted.
    refused: OnceLock<PublicKey>,
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("ServerKey")
    }
}

impl ServerCertVerifier for ServerKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let key = raw_key(end_entity, intermediates)?;
        if (self.trust)(&key) {
            return Ok(ServerCertVerified::assertion());
        }
        let _ = self.refused.set(key);
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    raw_keys_of_tls13!();
}

/// The server's verifier of a client's key: any key will do, if it is proved.
#[derive(Debug)]
struct AnyClientKey;

impl ClientCertVerifier for AnyClientKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        raw_key(end_entity, intermediates).map(|_| ClientCertVerified::assertion())
    }

    raw_keys_of_tls13!();
}
