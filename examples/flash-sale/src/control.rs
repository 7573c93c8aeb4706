//! The buttons, the switches and the slider of the page.

use std::sync::Arc;

use serde::Deserialize;

use crate::BoxError;
use crate::demo::Demo;
use crate::experiments;
use crate::model::{State, Tone};
use crate::options::RATES;
use crate::processes::Instances;
use crate::verdict::Phase;

/// The form that the page sends: one action, or a new rate.
#[derive(Debug, Deserialize)]
pub(crate) struct Form {
    #[serde(default)]
    action: String,
    rate: Option<u32>,
}

/// Why a form was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error(
        "unknown action `{0}`; use start, reset, lock, fence, slow, or freeze-N, kill-N or start-N with \
         the number of an instance"
    )]
    Unknown(String),
    #[error("`{0}` needs instances that are processes; start the demo without --in-process")]
    NeedsProcesses(String),
    #[error(transparent)]
    Failed(#[from] BoxError),
}

/// Does what the form says.
pub(crate) async fn apply(demo: &Arc<Demo>, form: Form) -> Result<(), ControlError> {
    match form.action.as_str() {
        "" if form.rate.is_some() => {}
        "start" => start(demo).await?,
        "reset" => demo.open_sale(Phase::Ready).await.map_err(BoxError::from)?,
        "lock" => demo.model().switch_lock(),
        "fence" => demo.model().switch_fence(),
        "slow" => demo.model().switch_slow(),
        action => {
            let count = demo.model().instances.len();
            let Some((verb, number)) = of_an_instance(action, count) else {
                return Err(ControlError::Unknown(form.action));
            };
            let Some(instances) = &demo.instances else {
                return Err(ControlError::NeedsProcesses(form.action));
            };
            instance(demo, instances, verb, number).await?;
        }
    }
    if let Some(rate) = form.rate {
        demo.model().settings.rate = rate.clamp(*RATES.start(), *RATES.end());
    }
    Ok(())
}

/// Reads an action such as `freeze-2`.
fn of_an_instance(action: &str, count: usize) -> Option<(&str, usize)> {
    let (verb, number) = action.split_once('-')?;
    let number = number.parse().ok()?;
    let is_known = ["freeze", "kill", "start"].contains(&verb) && (1..=count).contains(&number);
    is_known.then_some((verb, number))
}

/// Starts the sale that is ready, or a new one. A sale that runs goes on.
async fn start(demo: &Arc<Demo>) -> Result<(), BoxError> {
    let phase = demo.model().sale.phase;
    match phase {
        Phase::Ready => demo.model().sale.phase = Phase::Selling,
        Phase::Selling => {}
        Phase::Over => demo.open_sale(Phase::Selling).await?,
    }
    Ok(())
}

/// Freezes, kills or starts an instance, if its state allows that.
async fn instance(
    demo: &Arc<Demo>,
    instances: &Instances,
    verb: &str,
    number: usize,
) -> Result<(), BoxError> {
    let state = demo.model().instance(number).state;
    let is_frozen = state == State::Frozen;
    if (verb, state) == ("start", State::Stopped) {
        demo.model().instance(number).state = State::Starting;
        demo.model()
            .notice(Tone::Info, format!("Instance {number} starts."));
        instances.start(demo, number).await?;
    } else if verb == "freeze" && state == State::Serving || verb == "kill" && state.can_die() {
        if !is_frozen {
            demo.model().instance(number).state = State::Chosen;
        }
        let (demo, verb) = (Arc::clone(demo), verb.to_owned());
        tokio::spawn(async move {
            let Some(instances) = &demo.instances else {
                return;
            };
            if verb == "kill" {
                experiments::kill(&demo, instances, number).await;
            } else {
                experiments::freeze(&demo, instances, number).await;
            }
        });
    }
    Ok(())
}
