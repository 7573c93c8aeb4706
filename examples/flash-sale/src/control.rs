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

/// Does what the form says. An unknown action does nothing.
pub(crate) async fn apply(demo: &Arc<Demo>, form: Form) -> Result<(), BoxError> {
    if let Some(rate) = form.rate {
        demo.model().settings.rate = rate.clamp(*RATES.start(), *RATES.end());
    }
    match form.action.as_str() {
        "start" => start(demo).await?,
        "reset" => demo.open_sale(Phase::Ready).await?,
        "lock" => demo.model().switch_lock(),
        "fence" => demo.model().switch_fence(),
        "slow" => demo.model().switch_slow(),
        action => {
            if let Some((verb, number)) = action.split_once('-')
                && let Some(instances) = &demo.instances
                && let Ok(number) = number.parse::<usize>()
                && (1..=demo.model().instances.len()).contains(&number)
            {
                instance(demo, instances, verb, number).await?;
            }
        }
    }
    Ok(())
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
