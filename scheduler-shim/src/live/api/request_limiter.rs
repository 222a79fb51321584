//! Limits the concurrent requests to the API server by how fast it answers.
//!
//! A scheduler that fills a cluster can make the API server slow for everybody. So the limit grows while answers are
//! quick, and is halved when they take much longer than the quickest ones, or fail. An API server that is always
//! slow, such as one far away, is not throttled: fewer requests would not make it faster.
//!
//! Events and statuses get few of the permits, so they never hold up bindings and evictions.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// The highest and the lowest limit of concurrent requests.
const MOST: usize = 64;
const LEAST: usize = 8;
/// How many of them may be events and statuses.
const LOW_PRIORITY: usize = 6;
/// An answer within this time is never slow.
const QUICK: Duration = Duration::from_millis(500);
/// An answer that takes this many times as long as the quickest one is slow.
const SLOW: u32 = 4;
/// The quickest answer is remembered in windows of this length. The current window and the one before it count.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    Decision,
    /// Events, conditions and statuses.
    LowPriority,
}

/// The limit of concurrent requests.
#[derive(Debug)]
struct ConcurrencyWindow {
    size: usize,
    /// Quick answers since the size last changed.
    quick: usize,
    shrunk: Option<Instant>,
    /// The quickest answer of each window, with the window's start.
    floors: VecDeque<(Instant, Duration)>,
}

impl ConcurrencyWindow {
    const fn new() -> Self {
        Self {
            size: MOST,
            quick: 0,
            shrunk: None,
            floors: VecDeque::new(),
        }
    }

    /// Records the latency of an answer; `None` if none came.
    fn record(&mut self, now: Instant, took: Option<Duration>) {
        let floor = took.map(|took| self.floor(now, took));
        let is_quick = took
            .zip(floor)
            .is_some_and(|(took, floor)| took <= QUICK.max(floor * SLOW));
        if is_quick {
            self.quick += 1;
            if self.quick >= self.size && self.size < MOST {
                self.size += 1;
                self.quick = 0;
            }
            return;
        }
        // Requests that were in flight together show the same slowness.
        let pause = took.unwrap_or_default().max(QUICK);
        if self.shrunk.is_none_or(|at| now >= at + pause) {
            self.size = (self.size / 2).max(LEAST);
            self.quick = 0;
            self.shrunk = Some(now);
        }
    }

    /// The quickest recent answer, including this one.
    fn floor(&mut self, now: Instant, took: Duration) -> Duration {
        while self
            .floors
            .front()
            .is_some_and(|(at, _)| now >= *at + REMEMBERED * 2)
        {
            self.floors.pop_front();
        }
        match self.floors.back_mut() {
            Some((at, floor)) if now < *at + REMEMBERED => *floor = took.min(*floor),
            _ => self.floors.push_back((now, took)),
        }
        let all = self.floors.iter().map(|(_, floor)| *floor);
        all.min().unwrap_or(took)
    }
}

/// Hands out the permits.
#[derive(Debug)]
pub(super) struct RequestLimiter {
    free: Semaphore,
    low_priority: Semaphore,
    window: Mutex<ConcurrencyWindow>,
    /// Permits that exist. When the limit shrinks, the surplus is retired as requests end.
    out: Mutex<usize>,
}

/// The permit for one request.
#[derive(Debug)]
pub(super) struct RequestPermit<'a> {
    limiter: &'a RequestLimiter,
    permit: Option<SemaphorePermit<'a>>,
    _low_priority: Option<SemaphorePermit<'a>>,
}

impl RequestLimiter {
    pub(super) fn new() -> Self {
        Self {
            free: Semaphore::new(MOST),
            low_priority: Semaphore::new(LOW_PRIORITY),
            window: Mutex::new(ConcurrencyWindow::new()),
            out: Mutex::new(MOST),
        }
    }

    /// Waits for a permit.
    pub(super) async fn acquire(&self, purpose: RequestPurpose) -> RequestPermit<'_> {
        let low_priority_permit = match purpose {
            RequestPurpose::Decision => None,
            RequestPurpose::LowPriority => self.low_priority.acquire().await.ok(),
        };
        RequestPermit {
            limiter: self,
            permit: self.free.acquire().await.ok(),
            _low_priority: low_priority_permit,
        }
    }

    /// Records the latency of an answer; `None` if none came.
    pub(super) fn record(&self, took: Option<Duration>) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.record(Instant::now(), took);
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if window.size > *out {
            self.free.add_permits(window.size - *out);
            *out = window.size;
        }
    }

    /// Whether there are more permits than the limit. If so, counts one as retired.
    fn is_too_many(&self) -> bool {
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let is_too_many = *out > window.size;
        *out -= usize::from(is_too_many);
        is_too_many
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take()
            && self.limiter.is_too_many()
        {
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Simulates an API server with this many answers per second and this least latency.
    fn settled(rate: u64, least: Duration) -> (usize, Duration) {
        let (mut window, mut now) = (ConcurrencyWindow::new(), Instant::now());
        let (mut took, mut rested) = (least, now);
        for _ in 0..4_000 {
            // Now and then it is idle.
            if now >= rested {
                window.record(now, Some(least));
                rested += REMEMBERED;
            }
            let under_way = u64::try_from(window.size).expect("it is small");
            took = least.max(ms(under_way * 1000 / rate));
            now += took / u32::try_from(under_way).expect("it is small");
            window.record(now, Some(took));
        }
        (window.size, took)
    }

    #[test]
    fn a_quick_api_server_gets_all_that_there_is_to_ask() {
        assert_eq!(settled(1000, ms(5)).0, MOST);
    }

    #[test]
    fn one_that_gets_slow_by_our_burst_is_asked_less_until_it_answers() {
        for rate in [10, 20, 50] {
            let (size, took) = settled(rate, ms(10));
            assert!(size < MOST, "{rate} a second: {size}");
            assert!(took <= ms(1000), "{rate} a second: {took:?}");
        }
    }

    #[test]
    fn one_that_is_far_away_is_not_slow() {
        assert_eq!(settled(1000, ms(2000)).0, MOST);
    }

    #[test]
    fn silence_halves_it_once_and_never_ends_it() {
        let (mut window, now) = (ConcurrencyWindow::new(), Instant::now());
        (0..10).for_each(|_| window.record(now, None));
        assert_eq!(window.size, MOST / 2);
        for second in 1..20 {
            window.record(now + Duration::from_secs(second), None);
        }
        assert_eq!(window.size, LEAST);
        for _ in 0..MOST * MOST {
            window.record(now, Some(ms(1)));
        }
        assert_eq!(window.size, MOST);
    }

    #[tokio::test]
    async fn permits_follow_the_window_and_low_priority_takes_few() {
        let limiter = RequestLimiter::new();
        let mut all = Vec::new();
        for _ in 0..LOW_PRIORITY {
            all.push(limiter.acquire(RequestPurpose::LowPriority).await);
        }
        let low_priority_permit =
            tokio::time::timeout(ms(20), limiter.acquire(RequestPurpose::LowPriority)).await;
        assert!(
            low_priority_permit.is_err(),
            "bindings are to have the rest"
        );
        for _ in LOW_PRIORITY..MOST {
            all.push(limiter.acquire(RequestPurpose::Decision).await);
        }
        limiter.record(None);
        all.clear();
        assert_eq!(limiter.free.available_permits(), MOST / 2);
        (0..MOST / 2).for_each(|_| limiter.record(Some(ms(1))));
        assert_eq!(limiter.free.available_permits(), MOST / 2 + 1);
    }
}
