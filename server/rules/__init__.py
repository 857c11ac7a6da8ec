"""The rules: one file each. RULES is the ordered list, which a test compares with the files."""

from __future__ import annotations

from server.rules.advantage_or_mask_fault import AdvantageOrMaskFault
from server.rules.agent_loop_fault import AgentLoopFault
from server.rules.base import Rule
from server.rules.clip_while_on_policy import ClipWhileOnPolicy
from server.rules.context_rewritten import ContextRewritten
from server.rules.critic_unreliable import CriticUnreliable
from server.rules.engine_mismatch import EngineMismatch
from server.rules.entropy_collapse import EntropyCollapse
from server.rules.entropy_explosion import EntropyExplosion
from server.rules.eval_budget_changed import EvalBudgetChanged
from server.rules.eval_not_following_reward import EvalNotFollowingReward
from server.rules.format_only_gain import FormatOnlyGain
from server.rules.joint_collapse import JointCollapse
from server.rules.language_mixing import LanguageMixing
from server.rules.length_collapse import LengthCollapse
from server.rules.length_growth import LengthGrowth
from server.rules.mix_drift import MixDrift
from server.rules.near_identical_responses import NearIdenticalResponses
from server.rules.negative_samples_dominate import NegativeSamplesDominate
from server.rules.non_finite import NonFinite
from server.rules.pipeline_inefficiency import PipelineInefficiency
from server.rules.repetition import Repetition
from server.rules.resume_discontinuity import ResumeDiscontinuity
from server.rules.reward_drop import RewardDrop
from server.rules.reward_flat import RewardFlat
from server.rules.run_stalled import RunStalled
from server.rules.slice_regression import SliceRegression
from server.rules.spike import Spike
from server.rules.staleness_harm import StalenessHarm
from server.rules.truncation import Truncation
from server.rules.verifier_fault import VerifierFault
from server.rules.zero_variance_groups import ZeroVarianceGroups

RULES: tuple[Rule, ...] = (
    NonFinite(),
    AdvantageOrMaskFault(),
    ContextRewritten(),
    ResumeDiscontinuity(),
    VerifierFault(),
    EvalBudgetChanged(),
    EngineMismatch(),
    ClipWhileOnPolicy(),
    StalenessHarm(),
    Truncation(),
    AgentLoopFault(),
    Repetition(),
    LengthGrowth(),
    LengthCollapse(),
    EntropyCollapse(),
    EntropyExplosion(),
    NearIdenticalResponses(),
    LanguageMixing(),
    NegativeSamplesDominate(),
    Spike(),
    CriticUnreliable(),
    RewardDrop(),
    SliceRegression(),
    RewardFlat(),
    EvalNotFollowingReward(),
    FormatOnlyGain(),
    ZeroVarianceGroups(),
    RunStalled(),
    MixDrift(),
    PipelineInefficiency(),
    JointCollapse(),
)
"""In the order of decision: deterministic faults first, measurement next, then engine, shape, distribution, optimiser, quality."""
