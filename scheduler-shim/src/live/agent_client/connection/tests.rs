//! The connection against a server of its own on the other end of a pipe.

use h2::server::{self, SendResponse};
use hyper::header::{HeaderMap, HeaderValue};
use tokio::io::{AsyncReadExt, DuplexStream, duplex};

use super::*;

/// More than the window, so that the rest comes only if what was read is given back.
const LARGE: usize = 3 * WINDOW as usize;

type ServedStream = server::Connection<DuplexStream, Bytes>;

fn request(body: &'static str) -> Request<Body> {
    let body = Body::new(body.to_owned());
    let request = Request::post("http://agent/apportion.v1.Agent/Watch").body(body);
    request.expect("the request is valid")
}

async fn connect() -> (AgentConnection, ServedStream) {
    let (near, far) = duplex(64 << 10);
    let (near, far) = tokio::join!(AgentConnection::over(near), server::handshake(far));
    (near.expect("it connects"), far.expect("it accepts"))
}

/// Answers a request with its own body, `LARGE` bytes and trailers.
async fn echo(request: Request<RecvStream>, mut answer: SendResponse<Bytes>) {
    let mut body = request.into_body();
    let mut sender = (answer.send_response(Response::new(()), false)).expect("it is open");
    while let Some(data) = body.data().await {
        sender
            .send_data(data.expect("it is whole"), false)
            .expect("it is open");
    }
    let rest = Bytes::from(vec![b'x'; LARGE]);
    sender.send_data(rest, false).expect("it is open");
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    sender.send_trailers(trailers).expect("it is open");
}

async fn serve(mut server: ServedStream) {
    while let Some(Ok((request, answer))) = server.accept().await {
        tokio::spawn(echo(request, answer));
    }
}

#[tokio::test]
async fn a_large_answer_comes_whole_and_with_its_trailers() {
    let (connection, server) = connect().await;
    tokio::spawn(serve(server));
    // Two at once, as the watch and a request.
    let answers = ["first", "second"].map(|text| {
        let mut connection = connection.clone();
        async move {
            std::future::poll_fn(|context| connection.poll_ready(context)).await?;
            let answer = connection.call(request(text)).await?;
            let whole = answer.into_body().collect().await?;
            assert_eq!(whole.trailers().expect("it has some")["grpc-status"], "0");
            let data = whole.to_bytes();
            assert_eq!(data.len(), text.len() + LARGE);
            assert!(data.starts_with(text.as_bytes()));
            Ok::<(), AnyError>(())
        }
    });
    let [first, second] = answers;
    let done = tokio::join!(first, second);
    done.0.expect("the first is answered");
    done.1.expect("the second is answered");
}

#[tokio::test]
async fn a_reset_of_the_agent_is_an_error() {
    let (mut connection, mut server) = connect().await;
    tokio::spawn(async move {
        while let Some(Ok((_, mut answer))) = server.accept().await {
            answer.send_reset(Reason::REFUSED_STREAM);
        }
    });
    let refused = connection.call(request("")).await.expect_err("it is reset");
    let status = tonic::Status::from_error(refused);
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
}

#[tokio::test]
async fn it_closes_when_its_last_clone_is_dropped() {
    let (connection, mut server) = connect().await;
    let clone = connection.clone();
    drop(connection);
    let mut served = tokio::spawn(async move {
        while let Some(Ok((request, answer))) = server.accept().await {
            tokio::spawn(echo(request, answer));
        }
    });
    let answer = clone.clone().call(request("")).await;
    answer.expect("the other clone still works");
    assert!(!served.is_finished());
    drop(clone);
    timeout(TRIED, &mut served)
        .await
        .expect("it ends")
        .expect("it does not fail");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_answers_no_pings_is_gone() {
    let (mut connection, server) = connect().await;
    let began = tokio::time::Instant::now();
    let lost = connection.call(request("")).await;
    lost.expect_err("nobody reads what it sends");
    assert!(began.elapsed() >= TRIED && began.elapsed() < TRIED * 3);
    drop(server);
}

#[tokio::test]
async fn what_is_no_http2_is_an_error() {
    let (near, mut far) = duplex(64 << 10);
    let mut connection = AgentConnection::over(near).await.expect("it sends first");
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let _ = far.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let _ = far.read_to_end(&mut Vec::new()).await;
    });
    let failed = connection.call(request("")).await;
    failed.expect_err("the answer is not HTTP/2");
}
