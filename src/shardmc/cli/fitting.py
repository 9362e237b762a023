"""`shardmc fit rows.parquet "y ~ x"`: a generalised linear model from a table to a certified posterior."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardmc.cli.printing import AsCsv, AsJson, Every, Printing, Quiet, Verbose

if TYPE_CHECKING:
    from shardmc.engine import Engine
    from shardmc.posterior import Posterior

Rows = Annotated[str, typer.Argument(help="A Parquet file or folder, or a CSV file: a path or a URL.")]
Formula = Annotated[
    str, typer.Argument(help='For example "y ~ x1 + C(region) + x1:x2", or "y ~ x + (1 + x | g)".')
]
FamilyName = Annotated[
    str,
    typer.Option(
        help="gaussian, bernoulli, binomial, poisson, negative_binomial, zero_inflated_poisson, "
        "zero_inflated_negative_binomial, gamma, lognormal, inverse_gaussian, weibull, beta, student_t, ordinal, "
        "categorical or multinomial. A link goes in brackets: bernoulli(link=cloglog)."
    ),
]
Out = Annotated[Path, typer.Option(help="The run folder. A run that was stopped is resumed.")]
Shards = Annotated[str, typer.Option(help='The number of shards, or "auto".')]
Draws = Annotated[int, typer.Option(help="The number of draws from the posterior.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same draws.")]
Priors = Annotated[
    list[str] | None,
    typer.Option(help='A prior, e.g. "x1=normal(0, 1)". May be repeated.'),
]
Offset = Annotated[str | None, typer.Option(help="A column added to the linear predictor.")]
Exposure = Annotated[
    str | None, typer.Option(help="A column to which the expected response is proportional.")
]
Trials = Annotated[
    str | None, typer.Option(help="Number of trials of family binomial: a column or a number.")
]
Censored = Annotated[
    str | None,
    typer.Option(help="A column that is 1 where the time of family weibull is right-censored, else 0."),
]
Keep = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Keep a row in every shard if its leverage exceeds this times the largest share. The default is 0.2; a "
        "smaller number keeps more rows, and 0 keeps none.",
    ),
]
Weights = Annotated[
    str | None, typer.Option(help="A column of row weights. They are counts: weight 40 means 40 rows.")
]
SurveyWeightsName = Annotated[
    str | None,
    typer.Option(
        "--survey-weights", help="A column with the weights of a survey. The draws get design-based errors."
    ),
]
IsRobust = Annotated[
    bool, typer.Option("--robust", help="Adjust the draws by a sandwich of the rows' scores.")
]
Clusters = Annotated[
    str | None,
    typer.Option(
        help="A column of clusters: like --robust, for rows that depend on each other within clusters."
    ),
]
Strata = Annotated[str | None, typer.Option(help="A column whose values are spread evenly over the shards.")]
SamplerName = Annotated[str, typer.Option(help="auto, independence, warped, hmc, nuts or random-walk.")]
CombinerName = Annotated[str, typer.Option(help="recenter, consensus, swiss, ...")]
EngineName = Annotated[str, typer.Option(help="local or dask.")]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help="Address of a Dask scheduler. Without it, --engine dask starts workers on this machine."
    ),
]
WorkerTimeout = Annotated[
    float,
    typer.Option(min=0, help="Seconds to wait for a Dask worker before the run fails; 0 waits for ever."),
]
Memory = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="GB of rows to hold in memory, besides 1 GB for the process. Larger tables are read shard by shard.",
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(help="A folder for the shards of larger tables. All Dask workers must see it."),
]
TrustFiles = Annotated[
    bool,
    typer.Option(
        "--trust-files",
        help="Resume a run after its data files were copied: times of files of more than 512 MB do not count.",
    ),
]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")]
DropCollinear = Annotated[
    bool, typer.Option("--drop-collinear", help="Leave out columns that follow from earlier ones.")
]
Polish = Annotated[
    bool, typer.Option("--polish", help="Correct the draws for the errors that the certificate measures.")
]
PrecisionName = Annotated[
    str,
    typer.Option(help="auto, single or double: auto measures whether rounding in single precision matters."),
]
NodesNumber = Annotated[
    int | None,
    typer.Option(
        "--nodes", help="The number of quadrature nodes for each effect of groups. By default it is measured."
    ),
]
CertifyDraws = Annotated[
    int,
    typer.Option(
        help="The number of draws at which the certificate first computes gradients. If these cannot tell, it uses up "
        "to 1,000."
    ),
]
CertifyRows = Annotated[
    float | None,
    typer.Option(
        help="The part of the rows that each gradient reads. Below 1 the certificate is cheaper and less precise. By "
        "default it reads 16 shards, then a fifth of all shards and then all, as far as needed. For mixed models the "
        "default is 0.2, if no other option of the certificate is given."
    ),
]
CertifyMean = Annotated[
    float, typer.Option(help="The largest error of a mean that is within bounds, in posterior sd.")
]
CertifySd = Annotated[float, typer.Option(help="The largest relative error of an sd that is within bounds.")]
Predictive = Annotated[
    bool,
    typer.Option(
        "--predictive/--no-predictive",
        help="Compare a sample of the rows with simulated ones, for the report. This reads the table once more.",
    ),
]
Report = Annotated[bool, typer.Option(help="Write report.html into the run folder.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace the run that is in the folder already. Only its own files are removed.",
    ),
]


def fit(
    rows: Rows,
    formula: Formula,
    family: FamilyName = "gaussian",
    out: Out = Path("shardmc-run"),
    shards: Shards = "auto",
    draws: Draws = 10_000,
    seed: Seed = 0,
    prior: Priors = None,
    offset: Offset = None,
    exposure: Exposure = None,
    trials: Trials = None,
    censored: Censored = None,
    keep: Keep = None,
    weights: Weights = None,
    survey_weights: SurveyWeightsName = None,
    robust: IsRobust = False,
    clusters: Clusters = None,
    stratify: Strata = None,
    sampler: SamplerName = "auto",
    combiner: CombinerName = "recenter",
    engine: EngineName = "local",
    scheduler: Scheduler = None,
    worker_timeout: WorkerTimeout = 300.0,
    memory: Memory = None,
    scratch: Scratch = None,
    trust_files: TrustFiles = False,
    drop_missing: DropMissing = False,
    drop_collinear: DropCollinear = False,
    polish: Polish = False,
    precision: PrecisionName = "auto",
    nodes: NodesNumber = None,
    certify_draws: CertifyDraws = 100,
    certify_rows: CertifyRows = None,
    certify_mean: CertifyMean = 0.1,
    certify_sd: CertifySd = 0.1,
    predictive: Predictive = True,
    report: Report = True,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    every: Every = False,
) -> None:
    """Fit a generalised linear (mixed) model to a table of any size, and print and save its certified posterior."""
    from shardmc.check import Certify
    from shardmc.data import as_source
    from shardmc.formulas import glm

    most = max(certify_draws, Certify.max_draws)
    rows_read = "auto" if certify_rows is None else certify_rows
    certify = Certify(certify_draws, most, rows_read, certify_mean, certify_sd)
    printing = Printing(quiet, verbose, as_json, as_csv, every)
    posterior = glm(
        formula,
        as_source(
            rows,
            memory=None if memory is None else int(memory * 1e9),
            scratch=scratch,
            trust_files=trust_files,
        ),
        family=family,
        priors=_priors(prior or []),
        offset=offset,
        exposure=exposure,
        trials=_number_or_name(trials),
        censored=censored,
        drop_missing=drop_missing,
        drop_collinear=drop_collinear,
        predictive=predictive,
        shards=_shards(shards),
        draws=draws,
        seed=seed,
        **({} if keep is None else {"keep": keep or None}),
        weights=weights,
        survey_weights=survey_weights,
        robust=clusters or robust,
        stratify=stratify,
        sampler=sampler,
        combiner=combiner,
        engine=_engine(engine, scheduler, worker_timeout or None),
        certify=True if certify_rows is None and certify == Certify() else certify,
        polish=polish,
        precision=precision,
        nodes="auto" if nodes is None else nodes,
        run_dir=out,
        overwrite=force,
        progress=printing.progress,
    )
    if report:
        posterior.report(out / "report.html")
    wrote = f"Wrote {out}/posterior.nc{' and report.html' if report else ''}."
    printing.show(posterior, _priors_in_words(posterior), wrote)


def _priors_in_words(posterior: Posterior) -> str:
    priors = {} if posterior.regression is None else posterior.regression.priors
    first = list(priors.items())[:12]
    more = f" and {len(priors) - len(first)} more" if len(priors) > len(first) else ""
    return "Priors: " + ", ".join(f"{name} ~ {prior}" for name, prior in first) + more + "."


def _priors(given: list[str]) -> dict[str, str] | None:
    from shardmc.errors import OptionError

    result = {}
    for text in given:
        # The last "=": a column's name may have one, a prior has none.
        name, separator, prior = text.rpartition("=")
        if not separator:
            raise OptionError(f'A prior is given as "name=normal(0, 1)"; {text!r} has no "=".')
        result[name.strip()] = prior.strip()
    return result or None


def _number_or_name(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text


def _shards(text: str) -> int | str:
    from shardmc.errors import OptionError

    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise OptionError(f'shards must be a whole number or "auto", not {text!r}.') from None


def _engine(name: str, scheduler: str | None, worker_timeout: float | None) -> Engine | None:
    from shardmc.errors import OptionError, unknown

    if name == "local":
        if scheduler is not None:
            raise OptionError("--scheduler needs --engine dask.")
        return None
    if name != "dask":
        raise unknown("engine", name, ("local", "dask"))
    from shardmc.engine import Dask

    if scheduler is not None:
        return Dask(scheduler, worker_timeout=worker_timeout)
    try:
        from distributed import Client
    except ImportError:
        raise OptionError("--engine dask needs Dask: pip install 'shardmc[dask]'.") from None
    client = Client(threads_per_worker=1, dashboard_address=":0", set_as_default=False)
    return Dask(client, worker_timeout=worker_timeout)
