// Checks rules and queries with Prometheus's own parsers, as `promtool check rules` does.
//
//	check-rules FILE...    rule files, the queries of dashboards (.json), scrape configurations and
//	                       objects of the Prometheus operator
//
// It prints each mistake and ends with 1 when there was one. promtool itself links clients of all
// clouds and takes minutes to build.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

type board struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

// A scrape configuration as far as it is ours to decide; a key that is not here is a mistake.
type scrapes struct {
	Configs []struct {
		Job       string `yaml:"job_name"`
		Scheme    string `yaml:"scheme"`
		TLS       any    `yaml:"tls_config"`
		Auth      any    `yaml:"authorization"`
		Discovery []struct {
			Role       string
			Namespaces struct{ Names []string }
		} `yaml:"kubernetes_sd_configs"`
		Relabel []*relabel.Config `yaml:"relabel_configs"`
	} `yaml:"scrape_configs"`
}

// A PodMonitor likewise.
type monitor struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   any
	Spec       struct {
		Selector  any
		Endpoints []struct {
			Port   string
			Scheme string
			TLS    any `yaml:"tlsConfig"`
			Token  any `yaml:"bearerTokenSecret"`
			Labels []struct {
				Sources []string `yaml:"sourceLabels"`
				Target  string   `yaml:"targetLabel"`
			} `yaml:"relabelings"`
		} `yaml:"podMetricsEndpoints"`
	}
}

// checkTargets returns how many jobs or objects a file has that says what is scraped.
func checkTargets(text []byte, target any, count func() int) (int, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	checked := 0
	for {
		switch err := decoder.Decode(target); {
		case errors.Is(err, io.EOF):
			return checked, nil
		case err != nil:
			return checked, err
		}
		number := count()
		if number == 0 {
			return checked, errors.New("a part has no jobs or endpoints")
		}
		checked += number
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
		if text, err := os.ReadFile(file); err == nil && !strings.HasSuffix(file, ".json") {
			var known int
			switch {
			case bytes.Contains(text, []byte("\nscrape_configs:")):
				var all scrapes
				known, err = checkTargets(text, &all, func() int { return len(all.Configs) })
			case bytes.Contains(text, []byte("\nkind: PodMonitor")):
				var one monitor
				known, err = checkTargets(text, &one, func() int { return len(one.Spec.Endpoints) })
			}
			if err != nil {
				report(file, err)
			}
			if checked += known; known > 0 || err != nil {
				continue
			}
		}
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
	fmt.Printf("%d rules, queries and targets, %d mistakes\n", checked, mistakes)
	if mistakes > 0 || checked == 0 {
		os.Exit(1)
	}
}
