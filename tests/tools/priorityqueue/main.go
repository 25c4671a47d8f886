// Command priorityqueue measures the priority queue of controller-runtime in the shapes of its own benchmarks,
// as libs/workqueue/benches/shapes.rs does for ours. `cargo xtask bench queue` compares both.
//
// Usage: priorityqueue SHAPE [COUNT]
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

const (
	batch     = 1000
	rounds    = 9
	perRound  = 200 * time.Millisecond
	preloaded = 1_000_000
	consumers = 1000
)

func main() {
	count := 0
	if len(os.Args) > 2 {
		count, _ = strconv.Atoi(os.Args[2])
	}
	samples := map[string][]float64{}
	q := priorityqueue.New[int]("")
	switch os.Args[1] {
	case "add-get-done":
		samples["nanos"] = measure(func() {
			for i := range batch {
				q.Add(i)
			}
			for range batch {
				item, _ := q.Get()
				q.Done(item)
			}
		})
	case "add":
		samples["nanos"] = measure(func() {
			for i := range batch {
				q.Add(i)
			}
		})
	case "contended":
		for i := range preloaded {
			q.Add(i)
		}
		for range consumers {
			go func() {
				for {
					item, shutdown := q.Get()
					if shutdown {
						return
					}
					time.Sleep(time.Millisecond)
					q.Done(item)
				}
			}()
		}
		samples["nanos"] = measure(func() {
			for i := range batch {
				q.Add(i)
			}
		})
	case "memory":
		samples["rss"] = append(samples["rss"], rss())
		samples["heap"] = append(samples["heap"], heap())
		for i := range count {
			q.Add(i)
		}
		// What was added is a backlog until the next call.
		q.Len()
		samples["rss"] = append(samples["rss"], rss())
		samples["heap"] = append(samples["heap"], heap())
		runtime.KeepAlive(q)
	default:
		panic("unknown shape " + os.Args[1])
	}
	out, err := json.Marshal(map[string]any{
		"samples": samples,
		"facts":   map[string]string{"go": runtime.Version()},
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(out))
}

// measure returns nanoseconds per item, one number per round.
func measure(work func()) []float64 {
	var all []float64
	for range rounds {
		start, items := time.Now(), 0
		for time.Since(start) < perRound {
			work()
			items += batch
		}
		all = append(all, float64(time.Since(start).Nanoseconds())/float64(items))
	}
	return all
}

// heap returns the bytes of live objects.
func heap() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// rss returns the resident bytes of this process.
func rss() float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		panic(err)
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	if err != nil {
		panic(err)
	}
	return pages * float64(os.Getpagesize())
}
