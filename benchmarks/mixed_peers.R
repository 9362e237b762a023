# Fits a mixed model with lme4 or glmmTMB and prints its version, the seconds of the fit and its estimates, one "name value" a line.
# Arguments: file of columns (float64, one after another), number of rows, names of columns, formula, family, package.
given <- commandArgs(trailingOnly = TRUE)
columns <- strsplit(given[3], ",")[[1]]
count <- as.integer(given[2])
data <- as.data.frame(matrix(readBin(given[1], "double", count * length(columns)), count))
names(data) <- columns
for (name in intersect(columns, c("g", "h"))) data[[name]] <- factor(data[[name]])
formula <- as.formula(given[4])
package <- given[6]
suppressMessages(library(package, character.only = TRUE))
family <- switch(given[5], bernoulli = binomial(), poisson = poisson(), gaussian = gaussian())
times <- system.time({
  fit <- if (package == "glmmTMB") glmmTMB(formula, data, family = family)
         else if (given[5] == "gaussian") lmer(formula, data, REML = FALSE)
         else glmer(formula, data, family = family)
})
say <- function(name, value) cat(name, format(value, digits = 10), "\n")
cat(package, as.character(packageVersion(package)), "\n")
say("seconds", times[["elapsed"]])
say("cpu", times[["user.self"]] + times[["sys.self"]])
fixed <- if (package == "glmmTMB") fixef(fit)$cond else fixef(fit)
for (name in names(fixed)) say(sub("\\(Intercept\\)", "Intercept", name), fixed[[name]])
varying <- if (package == "glmmTMB") VarCorr(fit)$cond else VarCorr(fit)
for (group in names(varying)) {
  sds <- attr(varying[[group]], "stddev")
  names(sds) <- sub("\\(Intercept\\)", "Intercept", names(sds))
  for (name in names(sds)) say(paste0("sd_", group, "__", name), sds[[name]])
  if (length(sds) == 2) {
    say(paste0("cor_", group, "__", names(sds)[1], "__", names(sds)[2]), attr(varying[[group]], "correlation")[1, 2])
  }
}
if (given[5] == "gaussian") say("sigma", sigma(fit))
