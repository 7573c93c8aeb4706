package peer

import (
	"errors"
	"sync"
	"time"
)

// record keeps the moments of all sections, in the order in which they ran. It also checks that
// two sections never run at the same time.
type record struct {
	mutex    sync.Mutex
	holders  int
	sections []section
}

type section struct{ waited, acquired, released time.Time }

func (r *record) acquired(waited, acquired time.Time) int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.holders++
	if r.holders != 1 {
		fail(errors.New("two tasks hold the lock at the same time"))
	}
	r.sections = append(r.sections, section{waited: waited, acquired: acquired})
	return len(r.sections) - 1
}

// releasing records the moment before the call that releases the lock.
func (r *record) releasing(index int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.holders--
	r.sections[index].released = time.Now()
}

// contend has several tasks take turns.
func contend(program Program, o options) {
	clients := make([]Client, o.tasks)
	for task := range clients {
		if task > 0 && !o.separateClients {
			clients[task] = clients[0]
		} else {
			clients[task] = connect(program, o.Settings)
		}
	}

	var all record
	var tasks sync.WaitGroup
	start := make(chan struct{})
	for _, client := range clients {
		tasks.Go(func() {
			<-start
			for range o.sections {
				waited := time.Now()
				release := acquire(client, o.Settings)
				index := all.acquired(waited, time.Now())
				time.Sleep(o.hold)
				all.releasing(index)
				check(release())
			}
		})
	}
	began := time.Now()
	close(start)
	tasks.Wait()
	total := time.Since(began)

	waits, handoffs := []float64{}, []float64{}
	for index, s := range all.sections {
		waits = append(waits, micros(s.acquired.Sub(s.waited)))
		if index > 0 {
			handoffs = append(handoffs, micros(s.acquired.Sub(all.sections[index-1].released)))
		}
	}
	say(map[string]any{"total_us": micros(total), "wait_us": waits, "handoff_us": handoffs})
}
