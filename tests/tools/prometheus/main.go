// Checks rules and queries with Prometheus's own parsers, as `promtool check rules` does.
//
//	check-rules FILE...    rule files, and the queries of dashboards (.json)
//
// It prints each mistake and ends with 1 when there was one. promtool itself links clients of all
// clouds and takes minutes to build.
package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

type board struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

func main() {
	promql := parser.NewParser(parser.Options{})
	checked, mistakes := 0, 0
	report := func(file string, err error) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
		mistakes++
	}
	for _, file := range os.Args[1:] {
		if !strings.HasSuffix(file, ".json") {
			groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, promql, slog.Default())
			for _, err := range errs {
				report(file, err)
			}
			if groups != nil {
				for _, group := range groups.Groups {
					checked += len(group.Rules)
				}
			}
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			report(file, err)
			continue
		}
		var dashboard board
		if err := json.Unmarshal(text, &dashboard); err != nil {
			report(file, err)
			continue
		}
		// What Grafana puts in the place of its variables.
		variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				checked++
				if _, err := promql.ParseExpr(variables.Replace(target.Expr)); err != nil {
					report(file, fmt.Errorf("%s: %w", panel.Title, err))
				}
			}
		}
	}
	fmt.Printf("%d rules and queries, %d mistakes\n", checked, mistakes)
	if mistakes > 0 || checked == 0 {
		os.Exit(1)
	}
}
